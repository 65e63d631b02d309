// Owns the proof that a plan which ends while its blocks are taken keeps exactly the blocks that the scheduler was told of.
import { expect, test } from "vitest";
import { Arena } from "../../../src/arena/arena.ts";
import { HASH_BYTES, toNamespace } from "../../../src/base/block.ts";
import { blockKey } from "../../../src/base/key-text.ts";
import { newSidecarCounters } from "../../../src/base/metrics.ts";
import { EngineRates } from "../../../src/cost/engine-rates.ts";
import type { RecutContext } from "../../../src/sidecar/restore/arena-context.ts";
import { CostModel } from "../../../src/sidecar/restore/cost-model.ts";
import type { Fetcher } from "../../../src/sidecar/restore/fetcher.ts";
import type { Receipts } from "../../../src/sidecar/restore/receipts.ts";
import { Restorer } from "../../../src/sidecar/restore/restore.ts";
import { BlockCache } from "../../../src/sidecar/slots/block-cache.ts";
import type { SidecarMessage } from "../../../src/sidecar/socket/messages.ts";
import { BlockOutcomes } from "../../../src/sidecar/trace/block-outcomes.ts";
import { Decisions } from "../../../src/sidecar/trace/decisions.ts";
import { Ledger } from "../../../src/sidecar/trace/ledger.ts";
import { Reuse } from "../../../src/sidecar/trace/reuse.ts";
import { openPools } from "../../../src/sidecar/vaults/pools.ts";
import { Quarantine } from "../../../src/sidecar/vaults/quarantine.ts";
import { AT_FIRST, digest } from "../../support/records.ts";
import { closeAfterTest, logger, until } from "../../support/vaults.ts";

const NAMESPACE = toNamespace(digest("namespace"));
/** More than two turns of the loop take. */
const BLOCKS = 5000;
const HASHES = Buffer.concat(Array.from({ length: BLOCKS }, (_, index) => digest(`${index}`)));
const WAIT_MS = 12_345;

/** Opens a cache that holds all blocks, idle. */
async function openCache(): Promise<BlockCache> {
  const arena = closeAfterTest(new Arena({ slotBytes: 4096, slotCount: BLOCKS, dir: null }));
  await until(() => arena.status().touchedSlots === BLOCKS, "a touched arena");
  const cache = new BlockCache({ arena, shards: 1, saveSlots: 0, onUnwanted() {}, onRoom() {} });
  cache.setTouched(BLOCKS);
  const user = { onBlock(): void {} };
  for (let index = 0; index < BLOCKS; index += 1) {
    const hash = HASHES.subarray(index * HASH_BYTES, (index + 1) * HASH_BYTES);
    const place = { parent: Buffer.alloc(32), first: index, tenant: 0, ...AT_FIRST };
    const kv = { recordClass: "kv" as const, group: 0 };
    const name = { namespace: NAMESPACE, ...kv, hashes: hash, ...place };
    const block = cache.use(blockKey(NAMESPACE, 0, hash), name, 0, user);
    cache.startFetch([block]);
    cache.place(block);
    cache.leave(block, user);
  }
  return cache;
}

function openRestorer(
  cache: BlockCache,
  sent: SidecarMessage[],
  rates = new EngineRates(),
): Restorer {
  const restorer = new Restorer({
    engine: "engine-1",
    shards: 1,
    decisions: new Decisions(newSidecarCounters(), logger, new Ledger()),
    outcomes: new BlockOutcomes(),
    reuse: new Reuse(newSidecarCounters()),
    receipts: { nameOf: () => "", restored: () => {} } as unknown as Receipts,
    quarantine: new Quarantine(),
    pools: openPools({ kv: [], ssm: [] }),
    gates: { kv: [], ssm: [] },
    waitMs: WAIT_MS,
    stallMs: 1000,
    isWindowed: () => false,
    counters: newSidecarCounters(),
    logger,
    send: (...messages) => sent.push(...messages),
  });
  restorer.namespace = NAMESPACE;
  const fetcher = { add: () => {}, turnOf: () => 0 } as unknown as Fetcher;
  const sourceBytes = (): number => 4096;
  const shapeOf = (): { tokens: number; tail: number; class: "kv" } => {
    return { tokens: 16, tail: 0, class: "kv" };
  };
  const costs = new CostModel({
    rates,
    links: { kv: [], ssm: [] },
    cache,
    shards: 1,
    groups: () => [0],
    shapeOf,
    sourceBytes,
    blockBytes: sourceBytes,
    fetcher: { pendingBytes: () => 0, turnOf: () => 0 },
  });
  const groupAt = (): never => expect.fail("nobody asked for a receipt");
  const vaults = { kv: [], ssm: [] };
  const recut = { vaults, fidelityOf: () => 0, callMs: WAIT_MS } as unknown as RecutContext;
  restorer.open({ cache, fetcher, costs, recut, sourceBytes, shapeOf, groupAt });
  return closeAfterTest(restorer);
}

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn += 1) await new Promise(setImmediate);
}

function placedCount(sent: readonly SidecarMessage[]): number {
  return sent.reduce(
    (sum, message) => (message.t === "placed" ? sum + message.slots.length / 4 : sum),
    0,
  );
}

const WISHES = { handoff: 0, longer: null, returns: false, traceparent: "", receipt: "" };
const NONE = { tenant: 0, beyond: 0, ahead: 0, ...WISHES };
const PLAN = { t: "prefetch" as const, req: "r", plan: 1, ...NONE };
/** Aborted, or dropped by a reset. */
const UNUSED = { tokens: 0, from: 0, loadUs: 0, tookUs: 0, isBegun: false, why: "" };
const GROUPS = [{ group: 0, class: "kv" as const, hashes: HASHES, from: 0 }];

test("a plan whose deadline comes in any turn of the loop holds exactly the blocks that were told", async () => {
  const cache = await openCache();
  const realSetTimeout = globalThis.setTimeout;
  let expire: () => void = () => {};
  // The test fires the deadline itself.
  globalThis.setTimeout = ((handler: () => void, ms: number) => {
    if (ms === WAIT_MS) expire = handler;
    return realSetTimeout(ms === WAIT_MS ? () => {} : handler, ms === WAIT_MS ? 0 : ms);
  }) as typeof setTimeout;
  const told = new Set<number>();
  try {
    for (let turn = 0; turn < 14; turn += 1) {
      const sent: SidecarMessage[] = [];
      const restorer = openRestorer(cache, sent);
      restorer.prefetch({ ...PLAN, groups: GROUPS });
      restorer.askedFor(1);
      await turns(turn);
      expire();
      await turns(20);
      expect(sent.filter(({ t }) => t === "done")).toHaveLength(1);
      expect(cache.retained, `turn ${turn}`).toBe(BLOCKS - placedCount(sent));
      told.add(placedCount(sent));
      restorer.release({ plan: 1, ...UNUSED });
      expect(cache.retained).toBe(BLOCKS);
    }
  } finally {
    globalThis.setTimeout = realSetTimeout;
  }
  // The deadline came before, during and after the taking of blocks.
  expect(told.size).toBeGreaterThan(2);
});

test("a plan released in any turn of the loop holds nothing and hears nothing", async () => {
  const cache = await openCache();
  for (let turn = 0; turn < 14; turn += 1) {
    const sent: SidecarMessage[] = [];
    const restorer = openRestorer(cache, sent);
    restorer.prefetch({ ...PLAN, groups: GROUPS });
    await turns(turn);
    restorer.release({ plan: 1, ...UNUSED });
    const told = sent.length;
    await turns(20);
    expect(sent.length).toBe(told);
    expect(cache.retained, `turn ${turn}`).toBe(BLOCKS);
    expect(restorer.planCount).toBe(0);
  }
});

test("all of it is placed when nothing ends it, prefix first", async () => {
  const cache = await openCache();
  const sent: SidecarMessage[] = [];
  openRestorer(cache, sent).prefetch({ ...PLAN, groups: GROUPS });
  await until(() => sent.some(({ t }) => t === "done"), "the end");
  expect(sent.at(-1)).toMatchObject({ t: "done", reason: "complete" });
  expect(placedCount(sent)).toBe(BLOCKS);
  expect(cache.retained).toBe(0);
});

test("plans whose engine goes away, or that it never begins, say nothing of its queue; one that it begins does", async () => {
  const cache = await openCache();
  const rates = new EngineRates();
  const restorer = openRestorer(cache, [], rates);
  restorer.prefetch({ ...PLAN, ahead: 3, groups: GROUPS });
  restorer.prefetch({ ...PLAN, plan: 2, ahead: 3, groups: GROUPS });
  restorer.close();
  expect(restorer.planCount).toBe(0);
  expect(rates.queue.seconds(3)).toBeNull();
  const next = openRestorer(cache, [], rates);
  next.prefetch({ ...PLAN, ahead: 3, groups: GROUPS });
  next.prefetch({ ...PLAN, plan: 2, ahead: 3, groups: GROUPS });
  next.release({ plan: 1, ...UNUSED });
  expect(rates.queue.seconds(3)).toBeNull();
  next.release({ plan: 2, ...UNUSED, isBegun: true });
  expect(rates.queue.seconds(3)).not.toBeNull();
});
