// Owns the type of a vault for commands: over the network, or in memory of this machine.
import type { SharedVault } from "./shared-vault.ts";
import type { VaultClient } from "./vault-client.ts";

export type Vault = VaultClient | SharedVault;

/** True for a vault in another process. */
export function isRemote(vault: Vault): vault is VaultClient {
  return vault.tier === "vault";
}
