// Owns the rates of Valkey as a store beside our own vault over loopback TCP, and beside the reference client at the same server.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { connect, createServer } from "node:net";
import { Arena, SIDECAR_OWNER } from "../dist/arena/arena.js";
import { countBits, ItemStatus } from "../dist/base/block.js";
import { createLogger } from "../dist/base/log.js";
import { registerGeometry } from "../dist/base/native.js";
import { becomes } from "../dist/base/time.js";
import { ColdStore } from "../dist/client/cold/cold-store.js";
import { VaultClient } from "../dist/client/vault/vault-client.js";
import { digest, records, storeAll } from "./lib/blocks.js";
import { describe, figure, quantile } from "./lib/figures.js";
import { at } from "./lib/paths.js";
import { Stand } from "./lib/stand.js";

const MIB = 2 ** 20;
const KIB = 1024;
const CALL_MS = 60_000;
const SET_BYTES = 64 * MIB;
const BLOCK_BYTES = [256 * KIB, MIB, 4 * MIB];
const KEYS = 2000;
/** As the sidecar fetches and saves: bytes of a call, and calls at the same time. */
const CALL_BYTES = 8 * MIB;
const CALLS = 4;
const FLOORS = {
  restore: { on: "ratio", least: 0.8 },
  save: { on: "ratio", least: 0.7 },
  cpu: { on: "ratio", most: 1.2 },
  reference: { on: "ratio", least: 1.8 },
};
const LOOKUP_FLOOR = { on: "value", most: 1.5 };

export const title =
  "Valkey as a store beside our own vault over loopback, and the reference client at the same server";

export async function run({ isQuick, say }) {
  const rounds = isQuick ? 3 : 15;
  const stand = new Stand();
  const logger = createLogger("bench", { level: "silent" });
  const server = await startValkey(stand.dir);
  const places = {};
  const figures = [];
  try {
    const address = await stand.vault(4096 * MIB);
    places.vault = new VaultClient({ address, name: "kv", logger });
    const options = { address: `valkey://127.0.0.1:${server.port}`, settings: { class: 1 } };
    places.valkey = new ColdStore({ ...options, name: "kv", logger });
    for (const bytes of isQuick ? BLOCK_BYTES.slice(0, 2) : BLOCK_BYTES) {
      say(`blocks of ${bytes / KIB} KiB, in turns`);
      const set = await Set.open(bytes);
      const samples = await measured(places, set, rounds);
      set.close();
      const reference = await referenceOf(server.port, bytes, rounds, say);
      figures.push(...figuresOf(bytes, samples, reference));
    }
    say(`look-ups of ${KEYS} keys`);
    figures.push(...(await lookUps(places, isQuick ? 50 : 500)));
  } finally {
    for (const client of Object.values(places)) client.close();
    server.child.kill("SIGKILL");
    await stand.close();
  }
  const notes = [
    `sets of ${SET_BYTES / MIB} MiB of raw records, ${CALLS} calls of up to ${CALL_BYTES / MIB} MiB at a time; save and restore of each place in turns, medians of ${rounds} rounds`,
    "a restore ends when each record is verified and lies in its slot; processor time is that of the client's process, as a sidecar has it",
    "reference client: redis-py with hiredis in one process, MGET of 8 keys at a time into memory, nothing checked (bench/rivals/setup.sh installs it)",
  ];
  return { figures, notes };
}

/** Blocks of one size in an arena, with slots to restore to. */
class Set {
  static async open(bytes) {
    const set = new Set(bytes);
    const isTouched = () => set.arena.status().touchedSlots === set.count;
    if (!(await becomes(isTouched, CALL_MS, POLL_MS))) throw new Error("no memory");
    set.leases = set.arena.lease(SIDECAR_OWNER, set.count);
    return set;
  }

  constructor(bytes) {
    this.bytes = bytes;
    this.count = SET_BYTES / bytes;
    this.arena = new Arena({ slotBytes: bytes, slotCount: this.count, dir: null });
    const plain = { dtype: 0, tokens: 16, layers: 1, heads: 0, dimK: 0, dimV: 0 };
    const strides = { keyOffset: 0, valueOffset: 0, headStride: 0, tokenStride: 0 };
    const rest = { group: 0, recordClass: 1, layout: 1, ...plain, ...strides };
    this.geometry = registerGeometry({ ...rest, layerBytes: bytes });
  }

  renew(round) {
    this.namespace = digest(`stores ${this.bytes} ${round}`);
    this.items = records(this.namespace, `round ${round}`, this.count, this.bytes);
  }

  /** Calls `work` on each range of about a call's bytes, a few at a time. */
  async inTurns(work) {
    const step = Math.max(1, Math.floor(CALL_BYTES / this.bytes));
    let next = 0;
    const turns = async () => {
      while (next < this.count) {
        const from = next;
        next = Math.min(this.count, from + step);
        await work(from, next);
      }
    };
    await Promise.all(Array.from({ length: CALLS }, turns));
  }

  save(client) {
    return this.inTurns((from, to) =>
      storeAll(client, this.namespace, this.items.slice(from, to), CALL_MS),
    );
  }

  restore(client) {
    return this.inTurns(async (from, to) => {
      const window = {
        arena: this.arena.id,
        fidelity: 0,
        keys: Buffer.concat(this.items.slice(from, to).map(({ key }) => key)),
        geometries: new Uint32Array(to - from).fill(this.geometry),
        leases: this.leases.subarray(from * 2, to * 2),
      };
      const { statuses } = await client.fetch(this.namespace, window, { deadlineMs: CALL_MS });
      if (statuses.some((status) => status !== ItemStatus.ACCEPTED))
        throw new Error("not restored");
    });
  }

  close() {
    this.arena.close();
  }
}

/** Seconds and processor seconds by place and direction. The first round warms up. */
async function measured(places, set, rounds) {
  const samples = {};
  for (let round = 0; round <= rounds; round += 1) {
    set.renew(round);
    for (const what of ["save", "restore"]) {
      const names = Object.keys(places);
      for (const name of round % 2 === 0 ? names : names.toReversed()) {
        const before = process.cpuUsage();
        const startedNs = process.hrtime.bigint();
        await set[what](places[name]);
        const seconds = Number(process.hrtime.bigint() - startedNs) / 1e9;
        const { user, system } = process.cpuUsage(before);
        const of = (samples[`${name} ${what}`] ??= { seconds: [], cpu: [] });
        if (round === 0) continue;
        of.seconds.push(seconds);
        of.cpu.push((user + system) / 1e6);
      }
    }
  }
  return samples;
}

function figuresOf(bytes, samples, reference) {
  const size = bytes < MIB ? `${bytes / KIB} KiB` : `${bytes / MIB} MiB`;
  const rate = (name) => samples[name].seconds.map((seconds) => SET_BYTES / seconds / 1e9);
  const cpu = (name) => samples[name].cpu.map((seconds) => (seconds / SET_BYTES) * 1e9);
  const figures = [];
  for (const what of ["restore", "save"]) {
    const [own, other] = [`vault ${what}`, `valkey ${what}`];
    const beside = { of: "our vault" };
    figures.push(
      figure(`${size}: ${what}, our vault`, "GB/s", rate(own)),
      figure(`${size}: ${what}, Valkey`, "GB/s", rate(other), {
        ...beside,
        beside: rate(own),
        floor: FLOORS[what],
      }),
      figure(`${size}: ${what}, our vault, processor time`, "s/GB", cpu(own)),
      figure(`${size}: ${what}, Valkey, processor time`, "s/GB", cpu(other), {
        ...beside,
        beside: cpu(own),
        floor: FLOORS.cpu,
      }),
    );
  }
  if (reference === null) return figures;
  const restored = rate("valkey restore");
  return [
    ...figures,
    figure(`${size}: restore, the reference client`, "GB/s", reference.restore),
    figure(`${size}: restore, Valkey beside the reference client`, "GB/s", restored, {
      beside: restored.map((_rate, round) => reference.restore[round % reference.restore.length]),
      of: "the reference client",
      floor: FLOORS.reference,
    }),
    figure(`${size}: save, the reference client`, "GB/s", reference.save),
  ];
}

async function lookUps(places, samples) {
  const namespace = digest("stores look-up");
  const items = records(namespace, "look-up", KEYS, 64);
  const keys = Buffer.concat(items.map(({ key }) => key));
  const ms = {};
  for (const client of Object.values(places))
    await storeAll(client, namespace, items.slice(0, KEYS / 2), CALL_MS);
  for (let sample = 0; sample < samples; sample += 1) {
    for (const [name, client] of Object.entries(places)) {
      const startedNs = process.hrtime.bigint();
      const held = await client.lookup(namespace, keys, CALL_MS);
      (ms[name] ??= []).push(Number(process.hrtime.bigint() - startedNs) / 1e6);
      if (countBits(held, KEYS) !== KEYS / 2) throw new Error("a look-up found others");
    }
  }
  return Object.entries(ms).flatMap(([name, all]) =>
    [0.5, 0.99].map((share) =>
      describe({
        name: `look-up of ${KEYS} keys, the first half there, ${name === "vault" ? "our vault" : "Valkey"}, p${share * 100}`,
        unit: "ms",
        value: quantile(all, share),
        ...(name === "valkey" && share === 0.5 ? { floor: LOOKUP_FLOOR } : {}),
      }),
    ),
  );
}

async function freePort() {
  const probe = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => probe.once("listening", resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

const POLL_MS = 20;
const START_TRIES = 200;
const START_PAUSE_MS = 50;

async function startValkey(dir) {
  const port = await freePort();
  const program = process.env.TIERKV_TEST_VALKEY ?? "valkey-server";
  // All rounds fit: a full store would evict what a round has just saved.
  const memory = ["--maxmemory", "8gb", "--maxmemory-policy", "allkeys-lfu", "--save", ""];
  const where = ["--port", String(port), "--bind", "127.0.0.1", "--dir", dir];
  const child = spawn(program, [...where, ...memory], { stdio: "ignore" });
  const failed = new Promise((_resolve, reject) => {
    child.once("error", (error) =>
      reject(new Error(`${program}: ${error.message}; TIERKV_TEST_VALKEY names valkey-server`)),
    );
  });
  const answers = async () => {
    for (let attempt = 0; attempt < START_TRIES; attempt += 1) {
      const isUp = await new Promise((resolve) => {
        const socket = connect(port, "127.0.0.1", () => resolve(true)).once("error", () =>
          resolve(false),
        );
        socket.once("connect", () => socket.destroy());
      });
      if (isUp) return;
      await new Promise((resolve) => setTimeout(resolve, START_PAUSE_MS));
    }
    throw new Error(`${program} does not answer`);
  };
  await Promise.race([answers(), failed]);
  return { child, port };
}

/** Rates of the reference client by round; null where it is not installed. */
async function referenceOf(port, bytes, rounds, say) {
  const python =
    process.env.TIERKV_BENCH_REDIS_PYTHON ?? at("bench", "rivals", ".venv", "bin", "python");
  if (!existsSync(python)) {
    say("the reference client is left out: bench/rivals/setup.sh installs it");
    return null;
  }
  const args = [at("bench", "valkey_client.py"), port, bytes, SET_BYTES / bytes, rounds].map(
    String,
  );
  const child = spawn(python, args, { stdio: ["ignore", "pipe", "inherit"] });
  let text = "";
  child.stdout.on("data", (data) => (text += data));
  const code = await new Promise((resolve) => child.once("close", resolve));
  if (code !== 0) throw new Error(`the reference client ended with ${code}`);
  return JSON.parse(text);
}
