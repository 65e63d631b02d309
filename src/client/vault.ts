// Owns the type of a vault for commands: over the network, in memory of this machine, or a store that others run.
import { ColdStore } from "./cold/cold-store.ts";
import type { SharedVault } from "./shared-vault.ts";
import type { VaultClient } from "./vault-client.ts";

export type Vault = VaultClient | SharedVault | ColdStore;

/** True for a vault of ours in another process. */
export function isRemote(vault: Vault): vault is VaultClient {
  return vault.tier === "vault" && !(vault instanceof ColdStore);
}
