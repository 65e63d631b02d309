// Owns batches of events as an engine publishes them, and what an index then believes, in blocks.
import { encode } from "@msgpack/msgpack";
import { namesOf } from "../../src/gateway/index/index-of-blocks.ts";
import type { BlockIndex, Held, Tier } from "../../src/gateway/index/index-of-blocks.ts";

export type Wire = Readonly<Record<string, unknown>>;

const MEDIA = { gpu: "GPU", vault: "STORAGE" } as const;

export const batchOf = (...events: readonly Wire[]): Buffer =>
  Buffer.from(encode([1.5, events, 0], { useBigInt64: true }));

/** Blocks of `size` tokens with these hashes, behind `parent`. */
export function stored(
  hashes: bigint | readonly bigint[],
  parent: bigint | null,
  tokens: readonly number[],
  more: Wire & { tier?: Tier } = {},
): Wire {
  const all = typeof hashes === "bigint" ? [hashes] : hashes;
  const { tier = "gpu", ...fields } = more;
  return {
    type: "BlockStored",
    block_hashes: all,
    parent_block_hash: parent,
    token_ids: tokens,
    block_size: tokens.length / all.length,
    medium: MEDIA[tier],
    group_idx: 0,
    ...fields,
  };
}

export const removed = (hash: bigint, group = 0, tier: Tier = "gpu"): Wire => ({
  type: "BlockRemoved",
  block_hashes: [hash],
  medium: MEDIA[tier],
  group_idx: group,
});

export const CLEARED: Wire = { type: "AllBlocksCleared" };

/** An engine's announcement of its blocks' name in vaults; no words: no vault is reachable. */
export const naming = (words: readonly unknown[], blockSize: number, group = 0): Wire => ({
  type: "BlockStored",
  block_hashes: [],
  parent_block_hash: null,
  token_ids: [],
  block_size: blockSize,
  medium: "STORAGE",
  group_idx: group,
  extra_keys: [["tierkv", ...words]],
});

/** What each engine has of a prompt that goes on behind these tokens, in blocks, by the index's own names. */
export function spansOf(
  index: BlockIndex,
  engines: readonly number[],
  tokens: readonly number[],
  size: number,
  { salt = null, peers = engines }: { salt?: string | null; peers?: readonly number[] } = {},
): Held[] {
  const view = { ...namesOf(tokens, size, [], salt), tokens: tokens.length + 1 };
  const spans = index.spans(engines, peers, view);
  return spans.map(({ held, reach }) => ({ held: held / size, reach: reach / size }));
}

/** How many blocks of a prompt each engine holds itself. */
export const believed = (...asked: Parameters<typeof spansOf>): number[] =>
  spansOf(...asked).map(({ held }) => held);
