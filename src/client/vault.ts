// Owns the type of a vault for the sidecar: over the network, or in memory of this machine.
import type { SharedVault } from "./shared-vault.ts";
import type { VaultClient } from "./vault-client.ts";

/** vault: a process that answers · shared: memory that the sidecars of this machine map. */
export type Tier = "vault" | "shared";

export type Vault = VaultClient | SharedVault;

/** True for a vault in another process. */
export function isRemote(vault: Vault): vault is VaultClient {
  return vault.tier === "vault";
}
