// Owns who gets into the vault of this machine: a socket serves its own user; who comes over TCP, from this machine too, brings a token or a certificate.
import { join } from "node:path";
import type { VaultConfig } from "../config/config.ts";
import { isLocal, unixPath } from "../hosts.ts";
import type { Logger } from "../log.ts";
import { openSecurity } from "../vault/identity.ts";
import type { VaultSecurity } from "../vault/identity.ts";

export interface Access {
  security: VaultSecurity | null;
  auditLog: string | null;
  /** Whether tokens were made just now: a `tierkv join` line is to be shown. */
  isNew: boolean;
}

/** Whether calls come over TLS, from those who show that they may: every user of a machine reaches its loopback. */
export function isClosed(vault: VaultConfig): boolean {
  return !isSocket(vault) && !vault.insecureLan;
}

/** It serves its own user alone. */
const isSocket = ({ listen }: VaultConfig): boolean => unixPath(listen.text) !== null;

/** Whether other machines get in, and nobody asks them anything. */
export function isOpenToAll(vault: VaultConfig): boolean {
  return vault.insecureLan && ![vault.listen, ...vault.addresses].every(isLocal);
}

/** Reads certificate and tokens, or makes them. Throws CREDENTIALS. */
export function openAccess(vault: VaultConfig, logger: Logger): Access {
  const { auditLog } = vault;
  if (!isClosed(vault)) {
    if (isLocal(vault.listen) && !isSocket(vault)) {
      logger.warn("insecure_lan: every user of this machine may read and write in this vault");
    }
    return { security: null, auditLog, isNew: false };
  }
  const { security, isNew } = openSecurity(vault, logger);
  // Whoever has certificates of his own hands out what belongs to them himself.
  const isJoined = isNew && vault.tlsCert === null;
  return { security, isNew: isJoined, auditLog: auditLog ?? join(vault.stateDir, "audit.jsonl") };
}
