// Owns the figure of a slow peer: restores from one vault while another sends 1 KB/s.
import { once } from "node:events";
import { connect, createServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { createLogger } from "../dist/base/log.js";
import { BenchSet } from "../dist/cli/bench/bench-set.js";
import { VaultClient } from "../dist/client/vault/vault-client.js";
import { describe, quantile, timed } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const MIB = 2 ** 20;
const CALL_MS = 60_000;
const BLOCKS = 4;
const RAW = { codec: 0, fidelity: 0 };
/** Restores timed in a stretch; stretches with and without the slow peer alternate. */
const STRETCH = 25;
const BYTES_PER_SECOND = 1000;
const TRICKLE_MS = 100;
/** Another loopback address, because lanes are dialled at the address of gRPC. */
const FRONT = "127.0.0.2";
const FLOOR = { on: "ratio", most: 1.2 };

export const title = "Restores beside a vault that brings 1 KB/s";

export async function run({ isQuick }) {
  const stretches = isQuick ? 2 : 16;
  const stand = new Stand();
  const sets = [];
  const closing = [];
  try {
    const [fast, slow] = [await stand.vault(256 * MIB), await stand.vault(256 * MIB)];
    const open = async (address) => {
      const set = await BenchSet.open(BLOCKS, "kv", RAW);
      sets.push(set);
      const client = newClient(address);
      closing.push(client);
      await fill(client, set);
      return { client, set };
    };
    const [near, far] = [await open(fast), await open(slow)];
    const front = await openFront(slow);
    closing.push(front);
    const seconds = { alone: [], beside: [] };
    for (let stretch = 0; stretch <= stretches; stretch += 1) {
      const alone = await restores(near);
      const stop = await trickle(front, far.set);
      const beside = await restores(near);
      await stop();
      // The first stretch is discarded, because it warms up.
      if (stretch > 0) {
        seconds.alone.push(...alone);
        seconds.beside.push(...beside);
      }
    }
    return report(seconds, stretches);
  } finally {
    for (const each of [...closing, ...sets]) each.close();
    await stand.close();
  }
}

function newClient(address) {
  return new VaultClient({
    address,
    name: "kv",
    logger: createLogger("bench", { level: "silent" }),
  });
}

async function fill(client, set) {
  const items = set.encode(0, set.count);
  const statuses = await client.store(set.namespace, items, CALL_MS);
  for (const { record } of items) record.drop();
  if (statuses.some((status) => status !== 1)) throw new Error("not stored");
}

async function restores({ client, set }) {
  const seconds = [];
  for (let sample = 0; sample < STRETCH; sample += 1) {
    seconds.push(
      await timed(async () => {
        const { statuses } = await fetch(client, set);
        if (statuses.some((status) => status !== 1)) throw new Error("not restored over lanes");
      }),
    );
  }
  return seconds;
}

function fetch(client, set, more = {}) {
  const call = { deadlineMs: CALL_MS, ...more };
  return client.fetch(set.namespace, set.plan(0, set.count), call);
}

/** Begins a restore through the slow front; resolves to a function that ends it. */
async function trickle(front, set) {
  const client = newClient(front.address);
  const controller = new AbortController();
  const passed = front.passed();
  const fetching = fetch(client, set, { signal: controller.signal }).catch(() => "ended");
  while (front.passed() === passed) await sleep(TRICKLE_MS);
  return async () => {
    controller.abort(new Error("enough"));
    const outcome = await fetching;
    client.close();
    if (outcome !== "ended") throw new Error("the slow peer was not slow");
  };
}

/** Opens a front of the vault at `address` whose lanes deliver BYTES_PER_SECOND. */
async function openFront(address) {
  const servers = [];
  let passed = 0;
  const relay = async (port, forward) => {
    const server = createServer((socket) => {
      const other = connect(port, "127.0.0.1");
      for (const each of [socket, other]) each.on("error", () => {});
      socket.pipe(other);
      socket.on("close", () => other.destroy());
      forward(other, socket);
    });
    server.listen(port, FRONT);
    await once(server, "listening");
    servers.push(server);
  };
  const slowly = (from, to) => {
    const share = (BYTES_PER_SECOND * TRICKLE_MS) / 1000;
    const timer = setInterval(() => {
      const data = from.read(share) ?? from.read();
      if (data === null) return;
      // Small reads are not counted, because they are a welcome or an answer and no record.
      if (data.length === share) passed += data.length;
      to.write(data);
    }, TRICKLE_MS);
    to.on("close", () => {
      clearInterval(timer);
      from.destroy();
    });
  };
  const port = Number(address.split(":")[1]);
  await relay(port, slowly);
  return {
    address: `${FRONT}:${port}`,
    passed: () => passed,
    close: () => servers.forEach((server) => server.close()),
  };
}

function report({ alone, beside }, stretches) {
  const ms = (seconds, share) => quantile(seconds, share) * 1e3;
  const lines = [0.5, 0.99].map((share) => {
    const name = `restore of ${BLOCKS} blocks, p${share * 100}`;
    const ratio = ms(beside, share) / ms(alone, share);
    return [
      describe({ name: `${name}, alone`, unit: "ms", value: ms(alone, share) }),
      describe({
        name: `${name}, beside the slow peer`,
        unit: "ms",
        value: ms(beside, share),
        ratio,
        of: "alone",
        ...(share === 0.99 ? { floor: FLOOR } : {}),
      }),
    ];
  });
  const notes = [
    `${stretches * STRETCH} restores each of 9.4 MB, raw, in stretches of ${STRETCH} in turns; both vaults and the slow front on one machine`,
  ];
  return { figures: lines.flat(), notes };
}
