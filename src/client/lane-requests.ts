// Owns the requests on lanes and their results: the core's outcome, and the status of each item.
import { ItemStatus } from "../base/block.ts";
import type { TierkvError } from "../base/errors.ts";
import type { ArenaId } from "../base/native.ts";

/** Slots that records go to; one entry per key, for leases a pair of slot and generation. */
export interface FetchPlan {
  arena: ArenaId;
  fidelity: number;
  /** Packed keys, 36 bytes each, in the order needed. */
  keys: Buffer;
  /** Native geometry of each slot. */
  geometries: Uint32Array;
  leases: Uint32Array;
  /** Context of the span that fetches, 25 bytes; null, or left out: no span. */
  trace?: Buffer | null;
}

export interface Outcome {
  error: TierkvError | null;
  data: Buffer;
  bytes: number;
}

/** Results of a request's items. */
export interface Settled {
  /** One status per item; INCOMPLETE where the lanes broke first. */
  statuses: Uint8Array;
  /** Record bytes that travelled. */
  bytes: number;
  /** Reason for refusing the first bad record. */
  reason: string | null;
  /** True when the lanes broke: INCOMPLETE items may be retried on new ones, because their slots are written no more. */
  isBroken: boolean;
}

/** Bytes of a probe, and how long they took. */
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
