// Owns what a vault demands of a request before it touches the store; every refusal names the value and the limit.
import { className, HASH_BYTES, keyCount, PACKED_KEY_BYTES, toNamespace } from "../block.ts";
import type { Namespace, VaultClass } from "../block.ts";
import { TierkvError } from "../errors.ts";
import { KEYS_MAX, STORE_CALL_BYTES_MAX } from "../limits.ts";
import type { Crowded, FetchPlan, FetchSegment, StoreOffer } from "../wire/messages.ts";

export interface CheckedKeys {
  namespace: Namespace;
  keys: Buffer;
  count: number;
}

export interface CheckedOffer extends CheckedKeys {
  recordBytes: Float64Array;
  /** On whose account. */
  tenant: number;
  /** The last flush that the records' maker knew of. */
  flushed: number;
}

export function checkKeys(
  namespace: Buffer,
  keys: Buffer,
  maxKeys: number = KEYS_MAX,
): CheckedKeys {
  const count = keyCount(keys);
  if (count > maxKeys) {
    throw new TierkvError("OVERLOAD", { what: "keys in one call", count, limit: maxKeys });
  }
  return { namespace: toNamespace(namespace), keys, count };
}

/** Refuses what has too many parts to be read. */
export function checkCrowd({ crowd }: Crowded): void {
  if (crowd === undefined) return;
  const what = `${crowd}, which is to be split into several calls`;
  throw new TierkvError("OVERLOAD", { what, count: `more than ${KEYS_MAX}`, limit: KEYS_MAX });
}

/** Refuses the other class by name: a record in the wrong vault would never be found again. */
export function checkClass(asked: number, actual: VaultClass): void {
  const name = className(asked);
  if (name === actual || actual === "both") return;
  throw new TierkvError("WRONG_CLASS", {
    actual,
    asked: name,
    fix: `point [cluster] ${name}_cold at a vault started with role = "${name}_cold" or "cold"`,
  });
}

/** A record above `maxRecordBytes` passes here: the store answers that item alone TOO_LARGE and reserves nothing for it. */
export function checkOffer(
  offer: StoreOffer,
  vault: { recordClass: VaultClass; maxRecordBytes: number },
): CheckedOffer {
  checkClass(offer.recordClass, vault.recordClass);
  const checked = checkKeys(offer.namespace, offer.keys);
  if (offer.recordBytes.length !== checked.count) {
    throw new TierkvError("BAD_ARGUMENT", {
      reason: `offer of ${checked.count} keys with ${offer.recordBytes.length} record lengths: expected one per key`,
    });
  }
  const recordBytes = Float64Array.from(offer.recordBytes);
  const total = recordBytes
    .filter((bytes) => bytes <= vault.maxRecordBytes)
    .reduce((sum, bytes) => sum + bytes, 0);
  if (total > STORE_CALL_BYTES_MAX) {
    throw new TierkvError("OVERLOAD", {
      what: "record bytes in one Store call",
      count: total,
      limit: STORE_CALL_BYTES_MAX,
    });
  }
  return { ...checked, recordBytes, tenant: offer.tenant, flushed: offer.flushed };
}

/** The keys of all segments one after another, in need order. */
export function checkPlan(plan: FetchPlan, actual: VaultClass): CheckedKeys {
  checkCrowd(plan);
  for (const segment of plan.segments) {
    checkClass(segment.recordClass, actual);
    checkGroup(segment);
  }
  const keys = Buffer.concat(plan.segments.map((segment) => segment.keys));
  return checkKeys(plan.namespace, keys);
}

function checkGroup(segment: FetchSegment): void {
  const count = keyCount(segment.keys);
  for (let index = 0; index < count; index += 1) {
    const group = segment.keys.readUInt16LE(index * PACKED_KEY_BYTES + HASH_BYTES);
    if (group === segment.group) continue;
    throw new TierkvError("BAD_ARGUMENT", {
      reason: `key ${index} of a segment belongs to group ${group}: the segment names group ${segment.group}`,
    });
  }
}
