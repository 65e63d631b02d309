// Owns the rates of Valkey as a store: beside our own vault over loopback TCP and the reference client at the same server, and over the links of a cluster.
import { execFileSync, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { countBits } from "../dist/base/block.js";
import { createLogger } from "../dist/base/log.js";
import { ColdStore } from "../dist/client/cold/cold-store.js";
import { VaultClient } from "../dist/client/vault/vault-client.js";
import { digest, records, storeAll } from "./lib/blocks.js";
import { describe, figure, quantile } from "./lib/figures.js";
import { at } from "./lib/paths.js";
import { Stand } from "./lib/stand.js";
import { CALL_BYTES, CALL_MS, CALLS, SET_BYTES, StoreSet } from "./lib/store-set.js";
import { startValkey } from "./lib/valkey.js";

const SCENE = fileURLToPath(new URL("./lib/stores-scene.js", import.meta.url));
const MIB = 2 ** 20;
const KIB = 1024;
const BLOCK_BYTES = [256 * KIB, MIB, 4 * MIB];
const KEYS = 2000;
const LINKS = 3;
const LINK_MBIT = 1000;
/** Many blocks, because nodes have equal parts only of many. */
const LINK_SET = { bytes: 256 * KIB, setBytes: 256 * MIB };
const FLOORS = {
  restore: { on: "ratio", least: 0.8 },
  save: { on: "ratio", least: 0.7 },
  cpu: { on: "ratio", most: 1.2 },
  reference: { on: "ratio", least: 1.8 },
  links: { on: "ratio", least: 0.9 },
};
const LOOKUP_FLOOR = { on: "value", most: 1.5 };

export const titleOf = (part) =>
  part === "links"
    ? `A Valkey cluster of ${LINKS} nodes, each behind its own link of ${LINK_MBIT / 1000} Gb/s`
    : "Valkey as a store beside our own vault over loopback, and the reference client at the same server";

export const run = ({ part, ...how }) => (part === "links" ? overLinks(how) : besideVault(how));

/** In network namespaces, which need no rights where a user may make them. */
function overLinks({ isQuick, say }) {
  const asked = { nodes: LINKS, mbit: LINK_MBIT, ...LINK_SET, rounds: isQuick ? 2 : 8 };
  say(`${asked.rounds} rounds in namespaces`);
  const args = ["-rnpf", "--mount-proc", "--kill-child"];
  const argv = [...args, process.execPath, SCENE, JSON.stringify(asked)];
  const text = execFileSync("unshare", argv, { stdio: ["ignore", "pipe", "inherit"] });
  const rates = JSON.parse(text);
  const figures = ["restore", "save"].map((what) =>
    figure(`blocks of 256 KiB: ${what}`, "Mb/s", rates[what], {
      beside: rates[what].map(() => LINKS * LINK_MBIT),
      of: "the links together",
      floor: FLOORS.links,
    }),
  );
  const notes = [
    `sets of ${LINK_SET.setBytes / MIB} MiB; rates are of record bytes, a link's pace counts headers of packets, too`,
    `share of each node: ${rates.shares.map((share) => share.toFixed(2)).join(", ")}; the largest one bounds the rate`,
  ];
  return { figures, notes };
}

async function besideVault({ isQuick, say }) {
  const rounds = isQuick ? 3 : 15;
  const stand = new Stand();
  const logger = createLogger("bench", { level: "silent" });
  const server = await startValkey({ dir: stand.dir });
  const places = {};
  const figures = [];
  try {
    const address = await stand.vault(4096 * MIB);
    places.vault = new VaultClient({ address, name: "kv", logger });
    const options = { address: `valkey://127.0.0.1:${server.port}`, settings: { class: 1 } };
    places.valkey = new ColdStore({ ...options, name: "kv", logger });
    for (const bytes of isQuick ? BLOCK_BYTES.slice(0, 2) : BLOCK_BYTES) {
      say(`blocks of ${bytes / KIB} KiB, in turns`);
      const set = await StoreSet.open(bytes);
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
