// The time limit of a look-up: tolerates a pause of a usually fast vault, and gives little to a vault not asked for a while.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { HASH_BYTES } from "../../../src/base/block.ts";
import {
  LINK_STALE_MS,
  LOOKUP_LATE_SHARE_MAX,
  LOOKUP_SHARE_MAX,
} from "../../../src/base/limits/cost.ts";
import { EngineRates } from "../../../src/cost/engine-rates.ts";
import { Link } from "../../../src/cost/link.ts";
import { CostModel } from "../../../src/sidecar/restore/cost-model.ts";
import type { Waits } from "../../../src/sidecar/restore/cost-model.ts";
import type { BlockCache } from "../../../src/sidecar/slots/block-cache.ts";

const BLOCK_TOKENS = 128;
const BLOCKS = 4;
const MS_PER_TOKEN = 1;
const GAIN_MS = BLOCKS * BLOCK_TOKENS * MS_PER_TOKEN;
const GROUP = {
  group: 0,
  class: "kv" as const,
  hashes: Buffer.alloc(BLOCKS * HASH_BYTES),
  from: 0,
};

beforeEach(() => void vi.useFakeTimers({ toFake: ["performance"] }));
afterEach(() => void vi.useRealTimers());

/** Returns the limit in ms for a look-up of four blocks where answers took `answerMs`. */
function mostMs(answerMs: number, idleMs = 0, waits: Partial<Waits> = {}): number | null {
  const link = new Link();
  for (let count = 0; count < 20; count += 1) link.answered(200, answerMs);
  vi.advanceTimersByTime(idleMs);
  const rates = new EngineRates();
  for (const tokens of [128, 128, 256, 512]) {
    rates.prefill.learn({ tokens, attended: 0, seconds: (tokens * MS_PER_TOKEN) / 1000 });
  }
  const costs = new CostModel({
    rates,
    links: { kv: [link], ssm: [] },
    cache: {} as BlockCache,
    shards: 1,
    groups: () => [0],
    shapeOf: () => ({ tokens: BLOCK_TOKENS, tail: 0, class: "kv" }),
    sourceBytes: () => 4096,
    blockBytes: () => 4096,
    fetcher: { pendingBytes: () => 0, turnOf: () => 0 },
  });
  const plan = {
    span: { start: 0, end: BLOCKS * BLOCK_TOKENS },
    namespace: null,
    isAsked: true,
    ahead: 0,
  };
  return costs.lookupMs({ ...plan, ...waits }, [GROUP]);
}

test("an answer may be late where answers usually come at once", () => {
  expect(mostMs(0.5)).toBeCloseTo(GAIN_MS * LOOKUP_LATE_SHARE_MAX, -1);
});

test("an answer that usually takes longer gets the time it takes", () => {
  expect(mostMs(100)).toBeGreaterThanOrEqual(200);
});

test("a vault that was not asked for a while gets a small share of the time, one that takes too long none", () => {
  expect(mostMs(0.5, LINK_STALE_MS + 1)).toBeCloseTo(GAIN_MS * LOOKUP_SHARE_MAX, 0);
  expect(mostMs(GAIN_MS * 2)).toBe(0);
});

test("a vault that takes too long is asked while the engine has no room for the request", () => {
  expect(mostMs(GAIN_MS * 2, 0, { isAsked: false })).toBe(0);
  expect(mostMs(GAIN_MS * 2, 0, { isAsked: false, ahead: 1 })).toBeGreaterThan(0);
});
