// Owns what a sidecar asks of a vault, whichever way records travel: over the network, or through memory of this machine.
import type { SharedVault } from "./shared-vault.ts";
import type { VaultClient } from "./vault-client.ts";

/** vault: a process that answers · shared: memory that the sidecars of this machine map. */
export type Tier = "vault" | "shared";

export type Vault = VaultClient | SharedVault;

/** One whose answers come from another process. */
export function isRemote(vault: Vault): vault is VaultClient {
  return vault.tier === "vault";
}
