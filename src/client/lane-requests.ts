// Owns what is asked on lanes, and what it came to: an outcome as the core tells it, and the status of each item.
import { ItemStatus } from "../block.ts";
import type { TierkvError } from "../errors.ts";
import type { ArenaId } from "../native.ts";

/** Where records go; one entry (leases: a pair of slot and generation) per key. */
export interface FetchPlan {
  arena: ArenaId;
  fidelity: number;
  /** Packed, 36 bytes each, in need order. */
  keys: Buffer;
  /** Native geometries. */
  geometries: Uint32Array;
  leases: Uint32Array;
  /** Context of the span that fetches, 25 bytes; null, or left out: nobody wants one. */
  trace?: Buffer | null;
}

export interface Outcome {
  error: TierkvError | null;
  data: Buffer;
  bytes: number;
}

/** What became of a request's items. */
export interface Settled {
  /** One per item; INCOMPLETE where the lanes broke before it was known. */
  statuses: Uint8Array;
  /** Record bytes that travelled. */
  bytes: number;
  /** Why the first bad record was refused here. */
  reason: string | null;
  /** The lanes broke: what is INCOMPLETE may be tried on new ones. Nothing writes to a slot of it any more. */
  isBroken: boolean;
}

/** Bytes that are no record, and how long they took. */
export interface Probed {
  bytes: number;
  ms: number;
}

export function settledOf({ error, data, bytes }: Outcome, items: number): Settled {
  const statuses = new Uint8Array(items).fill(ItemStatus.INCOMPLETE);
  if (data.length === items) statuses.set(data);
  const isBad = error?.code === "BAD_RECORD";
  const reason = isBad ? (error?.message ?? null) : null;
  return { statuses, bytes, reason, isBroken: error !== null && !isBad };
}
