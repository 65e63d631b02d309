// Owns which client a command has for a target: one over the network with its credentials, or memory of this machine that is there.
import { SharedVault } from "../client/shared-vault.ts";
import { VaultClient } from "../client/vault-client.ts";
import type { Vault } from "../client/vault.ts";
import type { Config } from "../config/config.ts";
import { sharedPath } from "../hosts.ts";
import type { Logger } from "../log.ts";
import { securityFor } from "./credentials.ts";
import type { VaultTarget } from "./targets.ts";

export interface VaultLink {
  client: Vault;
  isTls: boolean;
}

/** Throws what a sidecar would be told of credentials, or of memory that is no fit region. */
export function linkTo(
  config: Config,
  target: VaultTarget,
  logger: Logger,
  lanes: number,
): VaultLink {
  const { address, classes } = target;
  const [name] = classes;
  if (sharedPath(address) !== null) {
    const client = new SharedVault({ address, name, maxBytes: 0, mustFit: false, logger });
    return { client, isTls: false };
  }
  const security = securityFor(config, target, logger);
  const client = new VaultClient({ address, name, logger, lanes, security });
  return { client, isTls: security !== null };
}
