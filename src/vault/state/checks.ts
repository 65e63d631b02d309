// Owns the checks of a request's keys before it touches the store; each refusal names value and limit.
import { keyCount, toNamespace } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { KEYS_MAX } from "../../base/limits/general.ts";

export interface CheckedKeys {
  namespace: Namespace;
  keys: Buffer;
  count: number;
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
