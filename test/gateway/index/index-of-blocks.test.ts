// Owns the proof of the index's own rules: unknown parents, copies, groups of windows and states, its bound, guesses, vaults.
import { expect, test } from "vitest";
import { hashesOf, lowOf, NOT_APART, rootOf } from "../../../src/gateway/hashes/forms.ts";
import { BlockIndex, namesOf } from "../../../src/gateway/index/index-of-blocks.ts";
import type { View } from "../../../src/gateway/index/index-of-blocks.ts";
import { batchOf, believed, CLEARED, removed, spansOf, stored } from "../../support/kv-batches.ts";
import type { Wire } from "../../support/kv-batches.ts";

const PROMPT = [1, 2, 3, 4, 5, 6];
const vaulted = (hash: bigint, parent: bigint | null, tokens: number[]): Wire =>
  stored(hash, parent, tokens, { tier: "vault" });

interface Known {
  index: BlockIndex;
  apply(engine: number, ...events: Wire[]): void;
  /** Blocks of the prompt that each engine holds. */
  held(tokens?: readonly number[]): number[];
}

function indexOf(engines = 2, blocksMax = 100): Known {
  const index = new BlockIndex(engines, blocksMax);
  const all = Array.from({ length: engines }, (_none, at) => at);
  for (const at of all) index.trust(at, true);
  return {
    index,
    apply: (engine, ...events) => expect(index.apply(engine, batchOf(...events))).toBeNull(),
    held: (tokens = PROMPT) => believed(index, all, tokens, 2),
  };
}

const THREE = [stored(1n, null, [1, 2]), stored(2n, 1n, [3, 4]), stored(3n, 2n, [5, 6])];

test("the longest prefix of each engine, and none past a hole", () => {
  const { index, apply, held } = indexOf();
  apply(0, ...THREE);
  apply(1, stored(7n, null, [1, 2]));
  expect(held()).toEqual([3, 1]);
  apply(0, removed(2n));
  expect(held()).toEqual([1, 1]);
  apply(0, CLEARED);
  expect(held()).toEqual([0, 1]);
  index.trust(1, false);
  expect(held()).toEqual([0, 0]);
});

test("a block with two copies is held until both are removed, in each of its groups", () => {
  const { apply, held } = indexOf(1);
  apply(0, stored(1n, null, [1, 2]), stored(1n, null, [1, 2]), removed(1n));
  expect(held()).toEqual([1]);
  apply(0, removed(1n));
  expect(held()).toEqual([0]);
  for (const group_idx of [0, 3]) apply(0, stored(1n, null, [1, 2], { group_idx }));
  expect(held()).toEqual([1]);
  apply(0, stored(1n, null, [1, 2], { group_idx: 3 }), removed(1n, 3));
  expect(held()).toEqual([1]);
  apply(0, removed(1n, 3));
  expect(held()).toEqual([0]);
});

test("what one engine lacks is not made up for by another", () => {
  const { apply, held } = indexOf();
  apply(0, ...THREE, removed(2n));
  apply(1, stored(7n, null, [1, 2]), stored(8n, 7n, [3, 4]));
  expect(held()).toEqual([1, 2]);
  expect(held([])).toEqual([0, 0]);
});

test("the 256th engine is told apart, and what it shares with others", () => {
  const { apply, held } = indexOf(256, 1000);
  apply(255, stored(1n, null, [1, 2]));
  for (const engine of [0, 64, 130]) apply(engine, ...THREE);
  const found = held();
  expect([255, 0, 64, 130, 1].map((at) => found[at])).toEqual([1, 3, 3, 3, 0]);
  apply(255, removed(1n));
  expect([held()[255], held()[64]]).toEqual([0, 3]);
});

test("the last token is always computed, and with it its block", () => {
  const { index, apply } = indexOf(1);
  apply(0, ...THREE);
  expect(index.spans([0], [], namesOf(PROMPT, 2, [], null))).toEqual([{ held: 4, reach: 4 }]);
});

/** A prompt as an engine with the usual form hashes it. */
async function hashed(
  tokens: readonly number[],
  size = 2,
): Promise<{ view: View; lows: bigint[] }> {
  const base = { algorithm: "sha256_cbor", root: rootOf("sha256_cbor", "s") } as const;
  const blocks = await hashesOf(base, tokens, size, [NOT_APART, "bare"]);
  const view = { blocks, areNames: false, unit: size, tokens: tokens.length + 1 };
  const lows = Array.from({ length: blocks.length / 32 }, (_none, at) =>
    lowOf(blocks.subarray(32 * at, 32 * at + 32)),
  );
  return { view, lows };
}

test("a block whose parent was never told of has no name, but its hash finds it and all before it", async () => {
  const { index, apply, held } = indexOf();
  const { view, lows } = await hashed([...PROMPT, 7, 8]);
  const [, second = 0n, third = 0n] = lows;
  const spans = (): number[] => index.spans([0, 1], [], view).map((span) => span.held / 2);
  apply(0, stored(third, second, [5, 6]));
  expect(held()).toEqual([0, 0]);
  expect(spans()).toEqual([3, 0]);
  // What was found so is removed as all else.
  apply(0, removed(lows[0]!));
  expect(spans()).toEqual([0, 0]);
});

test("what was removed before a prompt showed its blocks is not taken as held", async () => {
  const { index, apply } = indexOf(1);
  const { view, lows } = await hashed([...PROMPT, 7, 8]);
  apply(0, stored(lows[2]!, lows[1]!, [5, 6]), removed(lows[1]!));
  expect(index.spans([0], [], view)[0]!.held).toBe(0);
  // Stored again behind it: its parent was held, and the first block may have gone.
  apply(0, removed(lows[0]!), stored(lows[3]!, lows[2]!, [7, 8]));
  expect(index.spans([0], [], view)[0]!.held).toBe(0);
  apply(0, stored(lows.slice(0, 2), null, [1, 2, 3, 4]));
  expect(index.spans([0], [], view)[0]!.held).toBe(8);
});

const WINDOW = {
  group_idx: 1,
  kv_cache_spec_kind: "sliding_window",
  kv_cache_spec_sliding_window: 4,
};
const STATE = { group_idx: 1, kv_cache_spec_kind: "mamba" };

test("a window counts where its end is held; its events list some hashes and all tokens", async () => {
  const { index, apply } = indexOf(1);
  const { view, lows } = await hashed([...PROMPT, 7, 8]);
  const held = (): number => index.spans([0], [], view)[0]!.held / 2;
  apply(0, stored(lows, null, [...PROMPT, 7, 8]));
  expect(held()).toBe(4);
  // A window of four tokens reaches into two blocks.
  apply(0, { ...stored(lows[3]!, null, [...PROMPT, 7, 8]), ...WINDOW, block_size: 2 });
  expect(held()).toBe(0);
  apply(0, { ...stored(lows[2]!, lows[1]!, [5, 6]), ...WINDOW });
  expect(held()).toBe(4);
  apply(0, removed(lows[3]!, 1));
  expect(held()).toBe(0);
  apply(0, { ...stored(lows[1]!, lows[0]!, [3, 4]), ...WINDOW });
  expect(held()).toBe(3);
  // Without a window's end, the blocks from the first on.
  apply(0, removed(lows[2]!, 1), removed(lows[1]!, 1));
  apply(0, { ...stored(lows[0]!, null, [1, 2]), ...WINDOW });
  expect(held()).toBe(1);
});

test("a state counts at its own boundary, and no further than whole groups reach", async () => {
  const { index, apply } = indexOf(1);
  const { view, lows } = await hashed([...PROMPT, 7, 8]);
  const held = (): number => index.spans([0], [], view)[0]!.held / 2;
  apply(0, stored(lows, null, [...PROMPT, 7, 8]));
  apply(0, { ...stored([], null, [...PROMPT, 7, 8]), ...STATE, block_size: 2 });
  expect(held()).toBe(0);
  apply(0, { ...stored(lows[1]!, lows[0]!, [3, 4]), ...STATE });
  expect(held()).toBe(2);
  apply(0, { ...stored(lows[3]!, lows[2]!, [7, 8]), ...STATE });
  expect(held()).toBe(4);
  apply(0, removed(lows[2]!));
  expect(held()).toBe(2);
});

test("of a prompt just sent, windows and states count at its end only", async () => {
  const { index, apply } = indexOf(1);
  const { view, lows } = await hashed([...PROMPT, 7, 8]);
  apply(0, stored(9n, null, [9, 9]), { ...stored([], null, [9, 9]), ...WINDOW, block_size: 2 });
  index.guess(0, view);
  expect(index.spans([0], [], view)[0]!.held).toBe(8);
  const shorter = { ...view, blocks: view.blocks.subarray(0, 64), tokens: 5 };
  expect(lows).toHaveLength(4);
  expect(index.spans([0], [], shorter)[0]!.held).toBe(0);
});

test("a removal in a group of windows takes nothing from the others", () => {
  const { apply, held } = indexOf();
  apply(0, stored(1n, null, [1, 2], { group_idx: 1 }), removed(1n, 0));
  expect(held()).toEqual([1, 0]);
  apply(0, removed(1n, 1));
  expect(held()).toEqual([0, 0]);
});

test("above its bound the oldest blocks of the largest engine are forgotten", () => {
  const { index, apply, held } = indexOf(2, 6);
  apply(1, stored(100n, null, [1, 2]));
  for (let n = 0; n < 10; n += 1) apply(0, stored(BigInt(n), null, [n, n]));
  expect([index.blocks(0), index.blocks(1)]).toEqual([5, 1]);
  expect(held([9, 9])).toEqual([1, 0]);
  expect(held([0, 0])).toEqual([0, 0]);
  expect(held([1, 2])).toEqual([0, 1]);
});

test("blocks that come and go for ever leave the last ones, and the bound keeps to what is held", () => {
  const { index, apply, held } = indexOf(1, 100);
  for (let n = 0; n < 5000; n += 1) {
    apply(0, stored(BigInt(n), null, [n, n]));
    if (n >= 3) apply(0, removed(BigInt(n - 3)));
  }
  expect(index.blocks(0)).toBe(3);
  expect(held([4999, 4999])).toEqual([1]);
  expect(held([4996, 4996])).toEqual([0]);
});

test("what was just sent is believed for a while, also without trust", () => {
  const index = new BlockIndex(2, 100);
  index.guess(1, namesOf(PROMPT, 2, [], null));
  expect(believed(index, [0, 1], PROMPT, 2)).toEqual([0, 3]);
});

const reach = ({ index }: Known, peers = [0, 1, 2]): number[] =>
  spansOf(index, [0, 1, 2], PROMPT, 2, { peers }).map((span) => span.reach);

test("an engine that told of vaults can pull what another one saved, behind its own blocks", () => {
  const known = indexOf(3);
  const { apply, held } = known;
  apply(0, vaulted(1n, null, [1, 2]), vaulted(2n, 1n, [3, 4]));
  expect([held(), reach(known)]).toEqual([
    [0, 0, 0],
    [2, 0, 0],
  ]);
  apply(1, stored(7n, null, [1, 2]));
  expect(reach(known)).toEqual([2, 1, 0]);
  apply(1, vaulted(9n, null, [8, 8]));
  expect(reach(known)).toEqual([2, 2, 0]);
  // Engines of another model have nothing for each other.
  expect(reach(known, [1, 2])).toEqual([0, 1, 0]);
  apply(1, stored(8n, 7n, [3, 4]));
  apply(0, vaulted(3n, 2n, [5, 6]), removed(1n, 0, "vault"));
  // What lies before its own blocks' end need not be in a vault.
  expect(reach(known)).toEqual([0, 3, 0]);
});

test("an engine that empties its memory leaves what vaults hold; one whose events are lost can pull nothing", () => {
  const known = indexOf(3);
  const { index, apply } = known;
  apply(0, stored(1n, null, [1, 2]), vaulted(1n, null, [1, 2]), CLEARED);
  expect([index.blocks(0), index.blocks(0, "vault")]).toEqual([0, 1]);
  expect(reach(known)).toEqual([1, 0, 0]);
  apply(1, vaulted(9n, null, [8, 8]));
  index.trust(0, false);
  expect(reach(known)).toEqual([0, 0, 0]);
  index.trust(0, true);
  index.clear(1);
  expect(reach(known)).toEqual([1, 0, 0]);
});

test("an engine is full where a block goes for each that comes; what vaults hold says nothing of that", () => {
  const { index, apply } = indexOf(2, 10_000);
  for (let n = 0; n < 8; n += 1) apply(0, stored(BigInt(n), null, [n, n]));
  apply(0, vaulted(100n, null, [1, 2]), removed(100n, 0, "vault"));
  expect(index.pressure(0)).toBe(0);
  for (let n = 0; n < 4; n += 1) apply(0, removed(BigInt(n)));
  expect(index.pressure(0)).toBe(0.5);
  for (let n = 0; n < 12_000; n += 1) {
    apply(0, stored(1000n + BigInt(n), null, [n, 1]), removed(1000n + BigInt(n)));
  }
  expect(index.pressure(0)).toBeCloseTo(1, 2);
  expect(index.pressure(1)).toBe(0);
});
