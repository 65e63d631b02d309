// Owns access to this machine's vault: a socket serves its own user, and TCP needs a token or a certificate, even locally.
import { join } from "node:path";
import { isLocal, unixPath } from "../base/hosts.ts";
import type { Logger } from "../base/log.ts";
import type { VaultConfig } from "../config/config.ts";
import { openSecurity } from "../vault/access/identity.ts";
import type { VaultSecurity } from "../vault/access/identity.ts";

export interface Access {
  security: VaultSecurity | null;
  auditLog: string | null;
  /** Whether tokens were just made, and a `tierkv join` line is to be shown. */
  isNew: boolean;
}

/** Whether calls need TLS and credentials; on the loopback too, because every user of the machine reaches it. */
export function isClosed(vault: VaultConfig): boolean {
  return !isSocket(vault) && !vault.insecureLan;
}

/** Whether it listens on a Unix socket, which serves its own user alone. */
const isSocket = ({ listen }: VaultConfig): boolean => unixPath(listen.text) !== null;

/** Whether other machines get in without credentials. */
export function isOpenToAll(vault: VaultConfig): boolean {
  return vault.insecureLan && ![vault.listen, ...vault.addresses].every(isLocal);
}

/** Reads the certificate and tokens, or makes them. Throws CREDENTIALS. */
export function openAccess(vault: VaultConfig, logger: Logger): Access {
  const { auditLog } = vault;
  if (!isClosed(vault)) {
    if (isLocal(vault.listen) && !isSocket(vault)) {
      logger.warn("insecure_lan: every user of this machine may read and write in this vault");
    }
    return { security: null, auditLog, isNew: false };
  }
  const { security, isNew } = openSecurity(vault, logger);
  // No join line for the user's own certificates, because the user distributes those.
  const isJoined = isNew && vault.tlsCert === null;
  return { security, isNew: isJoined, auditLog: auditLog ?? join(vault.stateDir, "audit.jsonl") };
}
