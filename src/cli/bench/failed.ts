// Owns the words for a vault that could not be measured.
import { ItemStatus, statusName } from "../../base/block.ts";
import type { ErrorCode } from "../../base/errors.ts";
import type { Finding } from "../../diagnosis/findings.ts";

/** The part of a measurement that says why it ended. */
interface Ended {
  target: string;
  address: string;
  error: string | null;
  errorCode: ErrorCode | null;
}

/** Returns why a vault was not measured; its role and address are added where the reason does not name it. */
export function placed(
  { target, address }: Pick<Ended, "target" | "address">,
  error: string,
): string {
  return error.includes(address) ? error : `${target} at ${address}: ${error}`;
}

/** This machine may only read there, which is no mistake. */
const READ_ONLY: readonly (ErrorCode | null)[] = ["ROLE_MISSING", "VAULT_DENIED"];

/** Returns a finding for each vault that could not be measured; `draining`: addresses of vaults that take no records for now. */
export function failures(vaults: readonly Ended[], draining: ReadonlySet<string>): Finding[] {
  return vaults.flatMap((vault) => {
    const { address, error, errorCode } = vault;
    if (error === null) return [];
    const isMeant = draining.has(address) || READ_ONLY.includes(errorCode);
    const severity = isMeant ? "note" : "problem";
    return [{ code: "unmeasured", severity, text: `not measured: ${placed(vault, error)}` }];
  });
}

const REFUSALS: Partial<Record<ItemStatus, string>> = {
  [ItemStatus.MISSING]:
    "it was evicted or flushed before it was read: give the place more memory, or run `tierkv bench` with fewer --bytes",
  [ItemStatus.BAD_RECORD]: "its bytes were changed on the way or there",
  [ItemStatus.WRONG_CLASS]: "that vault keeps records of the other class",
  [ItemStatus.TOO_LARGE]: "it is larger than the vault takes",
  [ItemStatus.OVER_BUDGET]: "it has no room for it: give it more memory, or let it evict",
  [ItemStatus.INCOMPLETE]: "the connection broke before all of it came",
  [ItemStatus.QUARANTINED]: "its bytes were changed there",
  [ItemStatus.FLUSHED]: "all records were flushed meanwhile: measure again",
  [ItemStatus.DRAINING]: "it is being drained and takes no new records",
};

/** Returns why a vault or a store did not take or give a test record; `counts`: of a store, with its own words. */
export function refusalBy(
  status: ItemStatus,
  counts: Readonly<Record<string, number>> = {},
): string {
  if (status === ItemStatus.OVER_BUDGET && (counts["refused_OOM"] ?? 0) > 0) {
    return "it has no room for it (Valkey's OOM): set maxmemory-policy allkeys-lfu there, or give it more memory";
  }
  return REFUSALS[status] ?? `the answer is ${statusName(status)}`;
}
