// Owns the number of a tenant, made from its `cache_salt` as the shim makes it.
import { createHmac } from "node:crypto";

const DOMAIN = "tierkv tenant";
const NUMBER_BYTES = 6;

/** Returns a number below 2^48; 0 without a salt. Where records are sealed, vaults see `recordKeysTenant` of it instead. */
export function tenantOf(salt: string): number {
  if (salt === "") return 0;
  const digest = createHmac("sha256", DOMAIN).update(salt).digest();
  return digest.readUIntLE(0, NUMBER_BYTES) || 1;
}

export function isTenant(number: unknown): boolean {
  return Number.isSafeInteger(number) && Number(number) >= 0 && Number(number) < 2 ** 48;
}
