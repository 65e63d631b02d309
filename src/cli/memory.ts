// Owns how much memory a vault takes where the configuration does not say.
import { LOCAL_VAULT_FREE_SHARE, VAULT_BYTES_MIN, VAULT_FREE_SHARE } from "../limits/general.ts";

/** Half of what is free now leaves room for the machine's other work; what a container may use counts. */
export function vaultBudget(configured: number | null): number {
  return configured ?? share(VAULT_FREE_SHARE);
}

/** Less for a vault beside an engine. */
export function localVaultBudget(configured: number | null): number {
  return configured ?? share(LOCAL_VAULT_FREE_SHARE);
}

function share(part: number): number {
  return Math.max(VAULT_BYTES_MIN, Math.floor(process.availableMemory() * part));
}
