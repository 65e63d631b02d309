// Owns the type of a vault for commands: over the network, in memory of this machine, or a store that others run.
import type { ColdStore } from "./cold/cold-store.ts";
import type { SharedVault } from "./region/shared-vault.ts";
import type { VaultClient } from "./vault/vault-client.ts";

export type Vault = VaultClient | SharedVault | ColdStore;

/** True for a vault of ours in another process: records travel on lanes to it alone. */
export function isRemote(vault: Vault): vault is VaultClient {
  return "lanes" in vault;
}
