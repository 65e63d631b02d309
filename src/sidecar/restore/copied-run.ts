// Owns runs of blocks with copied hashes, because blocks outlive the frame they came in.
import { HASH_BYTES, hashAt } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { HASHES_PER_COPY } from "../../base/limits/general.ts";
import type { BlockRun } from "../slots/block.ts";
import type { GroupRange } from "./plan.ts";

/** A copied run, and its first block's index in the range. */
export interface CopiedRun {
  run: BlockRun;
  at: number;
  count: number;
}

/** Yields the blocks of a range from index `from` on: each run within one offer, HASHES_PER_COPY blocks at most. */
export function* copiedRuns(
  namespace: Namespace,
  range: GroupRange,
  from = 0,
): Generator<CopiedRun> {
  const { group, recordClass, hashes, parent, tenant } = range;
  for (const { first, end, vault, second, archived, source } of range.offers) {
    for (let at = Math.max(first, from); at < end; at += HASHES_PER_COPY) {
      const count = Math.min(HASHES_PER_COPY, end - at);
      const run = {
        namespace,
        recordClass,
        group,
        hashes: Buffer.from(hashes.subarray(at * HASH_BYTES, (at + count) * HASH_BYTES)),
        parent: Buffer.from(at === 0 ? parent : hashAt(range, at - 1)),
        first: range.first + at,
        tenant,
        vault,
        second,
        archived,
        source,
      };
      yield { run, at, count };
    }
  }
}
