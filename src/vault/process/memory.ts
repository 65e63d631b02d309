// Owns the default memory size of a vault.
import {
  LOCAL_VAULT_FREE_SHARE,
  VAULT_BYTES_MIN,
  VAULT_FREE_SHARE,
} from "../../base/limits/general.ts";

/** Returns half of the memory available now, within a container's limit, because the machine has other work. */
export function vaultBudget(configured: number | null): number {
  return configured ?? share(VAULT_FREE_SHARE);
}

/** Returns a smaller share for a vault beside an engine. */
export function localVaultBudget(configured: number | null): number {
  return configured ?? share(LOCAL_VAULT_FREE_SHARE);
}

function share(part: number): number {
  return Math.max(VAULT_BYTES_MIN, Math.floor(process.availableMemory() * part));
}
