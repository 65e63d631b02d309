// Owns a prompt's records that only archives have: how many a block has, and how many a plan still waits for.
import { HASH_BYTES, hasBit } from "../../base/block.ts";
import type { GroupRange, Run } from "./plan.ts";

interface Asked {
  readonly group: { readonly hashes: Buffer };
  far: Uint8Array | null;
}

const NONE = new Uint8Array(0);

/** Notes how many shards of a block have their bit set in `bits`, from `at` on. */
export function noteFar(
  asked: Asked,
  index: number,
  bits: Buffer,
  at: number,
  shards: number,
): void {
  let count = 0;
  for (let shard = 0; shard < shards; shard += 1) count += Number(hasBit(bits, at + shard));
  if (count === 0) return;
  asked.far ??= new Uint8Array(asked.group.hashes.length / HASH_BYTES);
  asked.far[index] = Math.min(count, 255);
}

/** Returns, per block, how many of its records only the archive of its vault has. */
export function farOf(asked: readonly (Asked | undefined)[], owners: Uint8Array): Uint8Array {
  const some = asked.find((one) => one?.far);
  if (some?.far === undefined || some.far === null) return NONE;
  return some.far.map((_, index) => asked[owners[index] ?? 0]?.far?.[index] ?? 0);
}

type Ranged = Pick<GroupRange, "recordClass" | "owners" | "far">;

/** Adds the archived records of a range, from block `from` on, to the sums of their vaults. */
export function addFar(
  records: Record<GroupRange["recordClass"], Float64Array>,
  { recordClass, owners, far }: Ranged,
  from: number,
  isThere: (index: number) => boolean = () => false,
): void {
  const to = records[recordClass];
  for (let index = from; index < far.length; index += 1) {
    const owner = owners[index] ?? 0;
    if (far[index] !== 0 && !isThere(index)) to[owner] = (to[owner] ?? 0) + (far[index] ?? 0);
  }
}

/** Adds the archived records of blocks not yet reported to the scheduler. */
export function addFarLeft(
  records: Record<GroupRange["recordClass"], Float64Array>,
  ranges: readonly Ranged[],
  runs: readonly Pick<Run, "placed">[],
): void {
  for (const [at, range] of ranges.entries()) addFar(records, range, runs[at]?.placed ?? 0);
}
