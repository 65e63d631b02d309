// Owns the figures of shared memory between sidecars: restore and save beside memcpy and a loopback vault.
import { rmSync } from "node:fs";
import { FETCH_WINDOW_BYTES, FETCHES_IN_FLIGHT_MAX } from "../dist/base/limits/general.js";
import { createLogger } from "../dist/base/log.js";
import { BENCH_PAGE_BYTES, BenchSet } from "../dist/cli/bench/bench-set.js";
import { SharedVault } from "../dist/client/region/shared-vault.js";
import { VaultClient } from "../dist/client/vault/vault-client.js";
import { chooseCodecs } from "../dist/sidecar/save/codecs.js";
import {
  describe,
  figure,
  gigabytesPerSecond,
  interleaved,
  quantile,
  timed,
} from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const MIB = 2 ** 20;
const CALL_MS = 60_000;
const LANES = 4;
const ACCEPTED = 1;
const LOOKUPS = 1000;
const LOOKUP_KEYS = 2000;

export const title =
  "Shared memory: arena to region and back, beside memcpy and a vault on the loopback";

export async function run({ isQuick, say }) {
  const count = Math.floor(((isQuick ? 64 : 256) * MIB) / BENCH_PAGE_BYTES);
  const rounds = isQuick ? 3 : 15;
  const bytes = count * BENCH_PAGE_BYTES;
  const stand = new Stand();
  const path = `/dev/shm/tierkv-bench-${process.pid}`;
  const logger = createLogger("bench", { level: "silent" });
  const size = { maxBytes: bytes * 3, mustFit: true, coherence: "hardware" };
  const shared = await SharedVault.open({ address: `shm:${path}`, name: "kv", logger, ...size });
  const address = await stand.vault(bytes * 3);
  const remote = new VaultClient({ address, name: "kv", logger, lanes: LANES });
  const figures = [];
  try {
    for (const kv of ["raw", "int8-mean-had"]) {
      const { kvName, byClass, fidelity } = chooseCodecs({ codec: { kv }, turboQuant: {} });
      say(`${kvName} records`);
      const options = { codec: byClass.kv, fidelity };
      figures.push(...(await measure(kvName, options, { count, rounds, shared, remote })));
    }
    figures.push(...(await lookups(shared)));
  } finally {
    shared.close();
    remote.close();
    rmSync(path, { force: true });
    await stand.close();
  }
  const notes = [
    `${count} blocks of ${(BENCH_PAGE_BYTES / MIB).toFixed(2)} MiB (16 tokens, 36 layers, 8 heads of 128, bf16), medians of ${rounds} rounds, every line measured once in each round`,
    "rates count bytes of pages; restore ends when every block is verified and decoded in the arena, save when all can be looked up",
    "memcpy: the same bytes between two buffers, one core",
    `loopback: a vault process of this machine, ${LANES} lanes over 127.0.0.1`,
  ];
  return { figures, notes };
}

async function measure(codec, options, { count, rounds, shared, remote }) {
  const set = await BenchSet.open(count, "kv", options);
  const bytes = count * BENCH_PAGE_BYTES;
  const [from, to] = [Buffer.alloc(bytes, 1), Buffer.alloc(bytes, 2)];
  const empty = (client) => client.flush(set.namespace, CALL_MS);
  const measures = {
    memcpy: () => timed(() => from.copy(to)),
    saveShared: async () => {
      await empty(shared);
      return timed(() => save(shared, set));
    },
    saveRemote: async () => {
      await empty(remote);
      return timed(() => save(remote, set));
    },
    restoreShared: () => timed(() => restore(shared, set)),
    restoreRemote: () => timed(() => restore(remote, set)),
  };
  try {
    await interleaved(1, measures);
    const seconds = await interleaved(rounds, measures);
    const rate = (name) => gigabytesPerSecond(bytes, seconds[name]);
    const beside = (name, of, floor) => ({ beside: rate(name), of, floor });
    const ofMemcpy = codec === "raw" ? { on: "ratio", least: 0.85 } : null;
    return [
      figure(
        `${codec}: restore`,
        "GB/s",
        rate("restoreShared"),
        beside("memcpy", "memcpy", ofMemcpy),
      ),
      figure(`${codec}: restore, beside the loopback`, "GB/s", rate("restoreShared"), {
        ...beside("restoreRemote", "a loopback vault", { on: "ratio", least: 2 }),
      }),
      figure(`${codec}: save`, "GB/s", rate("saveShared"), beside("memcpy", "memcpy", null)),
      figure(`${codec}: save, beside the loopback`, "GB/s", rate("saveShared"), {
        ...beside("saveRemote", "a loopback vault", null),
      }),
      figure(`${codec}: memcpy, one core`, "GB/s", rate("memcpy")),
    ];
  } finally {
    await Promise.all([empty(shared), empty(remote)]);
    set.close();
  }
}

async function inWindows(set, work) {
  const step = Math.max(1, Math.floor(FETCH_WINDOW_BYTES / BENCH_PAGE_BYTES));
  let next = 0;
  const worker = async () => {
    while (next < set.count) {
      const from = next;
      next = Math.min(set.count, from + step);
      check(await work(from, next));
    }
  };
  await Promise.all(Array.from({ length: FETCHES_IN_FLIGHT_MAX }, worker));
}

function check(statuses) {
  const bad = [...statuses].find((status) => status !== ACCEPTED);
  if (bad !== undefined) throw new Error(`a record was answered ${bad}`);
}

function save(client, set) {
  return inWindows(set, async (from, to) => {
    const items = set.deferred(from, to);
    try {
      return await client.store(set.namespace, items, CALL_MS);
    } finally {
      for (const { record } of items) record.drop();
    }
  });
}

function restore(client, set) {
  const call = { deadlineMs: CALL_MS };
  return inWindows(
    set,
    async (from, to) => (await client.fetch(set.namespace, set.plan(from, to), call)).statuses,
  );
}

async function lookups(client) {
  const keys = Buffer.alloc(36 * LOOKUP_KEYS, 7);
  for (let key = 0; key < LOOKUP_KEYS; key += 1) keys.writeUInt32LE(key, key * 36);
  const samples = [];
  for (let round = 0; round < LOOKUPS; round += 1) {
    samples.push((await timed(() => client.lookup(Buffer.alloc(32), keys, CALL_MS))) * 1000);
  }
  const name = `look-up of ${LOOKUP_KEYS} keys, none there`;
  const p99 = { name: `${name}, p99`, unit: "ms", value: quantile(samples, 0.99) };
  return [figure(name, "ms", samples), describe({ ...p99, floor: { on: "value", most: 0.3 } })];
}
