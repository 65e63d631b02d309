// Owns a scene of two rails to one vault, in its own network namespaces: `unshare -rn node rails-scene.js JSON` prints JSON.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { FETCH_WINDOW_BYTES, FETCHES_IN_FLIGHT_MAX } from "../../dist/base/limits/general.js";
import { createLogger } from "../../dist/base/log.js";
import { BenchSet } from "../../dist/cli/bench/bench-set.js";
import { VaultClient } from "../../dist/client/vault/vault-client.js";
import { killAll, networks, oneNetwork } from "./rails-cables.js";

/**
 * Parameters: each rail's rate in Mb/s, blocks per restore, rounds, and the rails to cut. With `vaults` there is one
 * network, in which the vault has that many addresses; else each rail is its own network.
 */
const { paces, blocks, rounds, cuts, vaults = 0 } = JSON.parse(process.argv[2]);
const CALL_MS = 120_000;
const HELLO_MS = 1000;
/** Long, because a rail that was cut repeatedly is left out for longer each time. */
const BACK_MS_MAX = 150_000;

const isTaken = (statuses) => [...statuses].every((status) => status === 1 || status === 10);

/** Restores as a sidecar does: windows in need order, several at once. */
async function restore(client, set, onProgress = () => {}) {
  const step = Math.max(1, Math.floor(FETCH_WINDOW_BYTES / (set.wireBytes / set.count)));
  let [next, missed] = [0, 0];
  const begunMs = performance.now();
  const worker = async () => {
    while (next < set.count) {
      const from = next;
      next = Math.min(set.count, from + step);
      const call = { deadlineMs: CALL_MS, onProgress };
      const { statuses } = await client.fetch(set.namespace, set.plan(from, next), call);
      missed += [...statuses].filter((status) => status !== 1).length;
    }
  };
  await Promise.all(Array.from({ length: FETCHES_IN_FLIGHT_MAX }, worker));
  return { ms: performance.now() - begunMs, missed };
}

async function save(client, set) {
  const items = set.deferred(0, set.count);
  const begunMs = performance.now();
  const statuses = await client.store(set.namespace, items, CALL_MS);
  set.wireBytes = items.reduce((sum, { record }) => sum + record.bytes, 0);
  for (const { record } of items) record.drop();
  if (!isTaken(statuses)) throw new Error(`not stored: ${statuses.join()}`);
  return performance.now() - begunMs;
}

/** Retries the hello, because the first rail tried may not work. */
async function untilGreeted(client) {
  for (let left = BACK_MS_MAX; ; left -= HELLO_MS) {
    try {
      return await client.hello(HELLO_MS);
    } catch (error) {
      if (left < 0) throw error;
    }
  }
}

async function untilOver(client, ways) {
  for (let left = BACK_MS_MAX; client.lanesOver !== ways; left -= 10) {
    if (left < 0) throw new Error(`lanes are over ${client.lanesOver} ways, not ${ways}`);
    await sleep(10);
  }
}

const rate = (set, ms) => (set.wireBytes * 8) / ms / 1e3;

/** Returns the bytes over each cable so far; of the kernel's counts, column 0 is received and column 8 is sent. */
function carried(column) {
  const lines = readFileSync("/proc/self/net/dev", "utf8").split("\n");
  return paces.map((_, number) => {
    const line = lines.find((one) => one.trim().startsWith(`near${number}:`)) ?? "";
    return Number(line.split(":")[1]?.trim().split(/\s+/)[column]);
  });
}

async function main(dir) {
  execFileSync("ip", ["link", "set", "lo", "up"]);
  const scene = vaults > 0 ? await oneNetwork(dir, paces, vaults) : await networks(dir, paces);
  const { address, security, locals } = scene;
  // Lines are made as in a sidecar, and go nowhere.
  const logger = createLogger("scene", { level: "debug", destination: { write() {} } });
  const client = new VaultClient({ address, security, locals, name: "kv", logger });
  const set = await BenchSet.open(blocks, "kv", { codec: 0, fidelity: 0 });
  const result = { saves: [], restores: [], alone: [], cuts: [] };
  await untilGreeted(client);
  const ways = await client.rails();
  result.ways = ways.map(({ address: to, local = null, isOpen }) => ({ to, local, isOpen }));
  await untilOver(client, scene.ways);
  for (let round = 0; round < rounds; round += 1) {
    set.renew();
    await client.measure(set.namespace, CALL_MS);
    const savedMs = await save(client, set);
    result.saves.push(rate(set, savedMs));
    result.restores.push(rate(set, (await restore(client, set)).ms));
  }
  result.carried = { saved: carried(8), restored: carried(0), each: set.wireBytes };
  for (const number of cuts) {
    await untilOver(client, scene.ways);
    let [arrived, cutMs] = [0, null];
    const begunMs = performance.now();
    const onProgress = (bytes) => {
      arrived += bytes;
      if (cutMs !== null || arrived < set.wireBytes / 4) return;
      scene.pull(number, "down");
      cutMs = performance.now() - begunMs;
      result.arrived = arrived;
    };
    const { ms, missed } = await restore(client, set, onProgress);
    const held = await client.lookup(set.namespace, set.keys(), CALL_MS);
    const alone = await restore(client, set);
    const restMs = ((set.wireBytes - result.arrived) * 8) / rate(set, alone.ms) / 1e3;
    const found = [...held].reduce(
      (sum, byte) => sum + byte.toString(2).replaceAll("0", "").length,
      0,
    );
    result.alone.push(rate(set, alone.ms));
    result.cuts.push({
      rail: number,
      missed: missed + alone.missed,
      found,
      costMs: ms - cutMs - restMs,
    });
    scene.pull(number, "up");
  }
  if (cuts.length > 0) await untilOver(client, scene.ways);
  result.ended = { over: client.lanesOver, ...client.retries };
  set.close();
  client.close();
  return result;
}

const dir = mkdtempSync(join(tmpdir(), "tierkv-rails-"));
try {
  process.stdout.write(`${JSON.stringify(await main(dir))}\n`);
} finally {
  killAll();
  rmSync(dir, { recursive: true, force: true });
}
// Exit at once, because a connection that was cut may take minutes to end.
process.exit();
