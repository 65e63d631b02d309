// A queue before the engine makes restores free meanwhile, so that they and their saves are worth a slower link.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { HASH_BYTES } from "../../../src/base/block.ts";
import { LOAD_FADE_MS } from "../../../src/base/limits/cost.ts";
import { EngineRates } from "../../../src/cost/engine-rates.ts";
import { Link } from "../../../src/cost/link.ts";
import { CostModel } from "../../../src/sidecar/restore/cost-model.ts";
import type { GroupRange, Plan, PlanState } from "../../../src/sidecar/restore/plan.ts";
import type { BlockCache } from "../../../src/sidecar/slots/block-cache.ts";
import { goodputOf } from "../../support/goodput.ts";
import { AT_FIRST } from "../../support/records.ts";

const BLOCK_TOKENS = 128;
const BLOCKS = 4;
const BLOCK_BYTES = 4096;
const TOKENS = BLOCKS * BLOCK_TOKENS;
const COMPUTE_S = 0.5;
const FETCH_S = 5;

beforeEach(() => void vi.useFakeTimers({ toFake: ["performance"] }));
afterEach(() => void vi.useRealTimers());

/** `seen`: lengths of prompts that the engine has computed. */
function openCosts(seen: readonly number[] = [128, 128, 256, 512]): {
  rates: EngineRates;
  costs: CostModel;
} {
  const down = goodputOf((BLOCKS * BLOCK_BYTES) / FETCH_S);
  const rates = new EngineRates();
  for (const tokens of seen) {
    const attended = (tokens * tokens) / 2;
    rates.prefill.learn({ tokens, attended, seconds: (tokens / TOKENS) * COMPUTE_S });
  }
  const costs = new CostModel({
    rates,
    links: { kv: [new Link({ down })], ssm: [] },
    cache: { isPlacedAt: () => false, isInUseAt: () => false } as unknown as BlockCache,
    shards: 1,
    groups: () => [0],
    shapeOf: () => ({ tokens: BLOCK_TOKENS, tail: 0, class: "kv" }),
    sourceBytes: () => BLOCK_BYTES,
    blockBytes: () => BLOCK_BYTES,
    fetcher: { pendingBytes: () => 0, turnOf: () => 0 },
  });
  return { rates, costs };
}

function planOf(state: PlanState, waits: Partial<Plan>): Plan {
  const range: Partial<GroupRange> = { group: 0, recordClass: "kv", first: 0, cut: null };
  const hashes = Buffer.alloc(BLOCKS * HASH_BYTES);
  const offers = [{ ...AT_FIRST, first: 0, end: BLOCKS }];
  const ranges = [{ ...range, count: BLOCKS, keyOf: String, hashes, offers }];
  const span = { start: 0, end: TOKENS };
  const of = { tokens: TOKENS, ranges, span, runs: [], isHandedOver: false };
  return { state, isAsked: false, ahead: 0, ...of, ...waits } as unknown as Plan;
}

test("a link that is too slow is used while requests wait for the engine, as long as they waited of late", () => {
  const { rates, costs } = openCosts();
  const chosen = (ahead: number): string => {
    const plan = planOf("looking", { ahead });
    return costs.decide(plan, plan).choice;
  };
  expect([chosen(0), chosen(1)]).toEqual(["recomputed", "loaded"]);
  for (let count = 0; count < 40; count += 1) rates.queue.began(10, 1);
  expect([chosen(10), chosen(100)]).toEqual(["recomputed", "loaded"]);
});

test("once the engine has room, a plan that has no blocks yet is lost where computing answers first", () => {
  const { costs } = openCosts();
  expect(costs.isLost(planOf("queued", { ahead: 1 }))).toBe(false);
  expect(costs.isLost(planOf("queued", { ahead: 1, isAsked: true }))).toBe(true);
  expect(costs.isLost(planOf("queued", { isAsked: true, isHandedOver: true }))).toBe(false);
});

test("saves go on over a link that is too slow while requests wait longer than it takes", () => {
  const { rates, costs } = openCosts();
  expect(costs.isWorthSaving(TOKENS)).toBe(false);
  rates.queue.began(10, 2 * FETCH_S);
  expect(costs.isWorthSaving(TOKENS)).toBe(true);
  vi.advanceTimersByTime(4 * LOAD_FADE_MS);
  expect(costs.isWorthSaving(TOKENS)).toBe(false);
});

test("saves go on over a link that is too slow for the prompts seen, where far longer ones may take longer than it", () => {
  expect(openCosts([16, 16, 32]).costs.isWorthSaving(TOKENS)).toBe(true);
  expect(openCosts([64, 64, 256]).costs.isWorthSaving(TOKENS)).toBe(false);
});
