// Owns the proof that the reason for a missing window is not that of a block which is there.
import { expect, test } from "vitest";
import { HASH_BYTES, toNamespace } from "../../../src/base/block.ts";
import type { LookupAnswer } from "../../../src/sidecar/restore/lookup-answer.ts";
import { whyMissing } from "../../../src/sidecar/restore/misses.ts";
import type { MissContext, NeededGroup } from "../../../src/sidecar/restore/misses.ts";

const BLOCKS = 8;
const TOKENS = 16;
const NAMESPACE = toNamespace(Buffer.alloc(32, 1));
/** The whole prompt, and windows of two blocks. */
const GROUPS = [0, 2].map((tail, group) => ({
  group,
  class: "kv",
  hashes: Buffer.alloc(BLOCKS * HASH_BYTES, group + 1),
  from: 0,
  tokens: TOKENS,
  tail,
  tenant: 0,
})) as unknown as NeededGroup[];

/** `windows`: bits of the window blocks that are there. */
function why(windows: number): string | null {
  const held = [0xff, windows].map((bits) => ({ held: Buffer.from([bits]) }));
  const answer = { groups: held, silent: new Set() } as unknown as LookupAnswer;
  const up = { state: "up" };
  const context = {
    pools: { kv: { ownerInPeace: () => 0 } },
    gates: { kv: [up] },
    // Every block that this sidecar stored counts as gone once it is missing.
    outcomes: { missReason: () => "evicted" },
    tokens: 0,
  } as unknown as MissContext;
  return whyMissing(NAMESPACE, GROUPS, answer, context);
}

test("a window of which one block is there and the other was never stored is not evicted", () => {
  expect(why(0xff)).toBe("never_stored");
});

test("a window's block that is gone is", () => {
  expect(why(0x7f)).toBe("evicted");
});
