// Owns runs of blocks with copied hashes, because blocks outlive the frame they came in.
import { HASH_BYTES, hashAt } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { HASHES_PER_COPY } from "../../base/limits/general.ts";
import { RUN_BLOCKS } from "../../base/limits/pool.ts";
import { anchorOf, REBUILT } from "../../pool/placement.ts";
import type { BlockRun } from "../slots/block.ts";

const NO_HASHES = Buffer.alloc(0);

/** Copies a run from block `index` on, HASHES_PER_COPY blocks at most, with their hashes. */
export function copyRun(
  namespace: Namespace,
  run: Omit<BlockRun, "namespace">,
  index: number,
): BlockRun {
  const { group, recordClass, hashes, first, tenant } = run;
  const owners = run.owners.slice(index, index + HASHES_PER_COPY);
  const seconds = (run.seconds ?? run.owners.subarray(0, 0)).slice(index, index + HASHES_PER_COPY);
  const far = (run.far ?? run.owners.subarray(0, 0)).slice(index, index + HASHES_PER_COPY);
  const end = (index + HASHES_PER_COPY) * HASH_BYTES;
  const copy = Buffer.from(hashes.subarray(index * HASH_BYTES, end));
  const parent = Buffer.from(index === 0 ? run.parent : hashAt({ hashes }, index - 1));
  const at = first + index;
  const stripes = owners.includes(REBUILT) || seconds.includes(REBUILT) ? stripesOf(run, at) : null;
  const placed = { first: at, tenant, owners, seconds, far, stripes };
  return { namespace, recordClass, group, hashes: copy, parent, ...placed };
}

/** Copies the hashes of the whole stripes that the blocks from `at` on belong to. */
function stripesOf(
  { whole }: Pick<BlockRun, "whole">,
  at: number,
): NonNullable<BlockRun["stripes"]> {
  const first = anchorOf(at);
  const end = anchorOf(at + HASHES_PER_COPY + RUN_BLOCKS - 1);
  const hashes = whole?.subarray(first * HASH_BYTES, end * HASH_BYTES) ?? NO_HASHES;
  return { first, hashes: Buffer.from(hashes) };
}
