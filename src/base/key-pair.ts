// Owns a certificate with its key: read together, and refused where they do not match.
import { createSecureContext } from "node:tls";
import { TierkvError, toTierkvError } from "./errors.ts";
import { readPrivate, readPublic } from "./private-file.ts";

export interface KeyPair {
  cert: string;
  key: string;
}

/** `prefix`: the keys of the configuration before `_cert` and `_key`. Throws CREDENTIALS. */
export function readKeyPair(certPath: string, keyPath: string, prefix: string): KeyPair {
  const cert = readPublic(certPath, `${prefix}_cert`);
  const key = readPrivate(keyPath, `${prefix}_key`);
  checkPair(certPath, cert, key);
  return { cert, key };
}

/** Throws CREDENTIALS. */
export function checkPair(path: string, cert: string | Buffer, key: string | Buffer): void {
  try {
    createSecureContext({ cert, key });
  } catch (error) {
    const reason = `this certificate and its key cannot be used: ${toTierkvError(error).message}`;
    const fix = "name a certificate and its own key, both as PEM";
    throw new TierkvError("CREDENTIALS", { path, reason, fix }, { cause: error });
  }
}
