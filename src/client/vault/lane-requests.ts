// Owns the requests on lanes and their results: the core's outcome, and the status of each item.
import { ItemStatus } from "../../base/block.ts";
import type { TierkvError } from "../../base/errors.ts";
import type { Settled } from "../source.ts";

export interface Outcome {
  error: TierkvError | null;
  data: Buffer;
  bytes: number;
}

/** Results of a request's items. */
export interface LanesSettled extends Settled {
  /** True when the lanes broke: INCOMPLETE items may be retried on new ones, because their slots are written no more. */
  isBroken: boolean;
}

/** Bytes of a probe, and how long they took. */
export interface Probed {
  bytes: number;
  ms: number;
}

export function settledOf({ error, data, bytes }: Outcome, items: number): LanesSettled {
  // Of a request without an error, the core names statuses only where an item was not accepted.
  const others = error === null ? ItemStatus.ACCEPTED : ItemStatus.INCOMPLETE;
  const statuses = new Uint8Array(items).fill(others);
  if (data.length === items) statuses.set(data);
  const isBad = error?.code === "BAD_RECORD";
  const reason = isBad ? (error?.message ?? null) : null;
  return { statuses, bytes, reason, isBroken: error !== null && !isBad };
}
