// Owns Ed25519 keys derived from a secret, and the files that hold such a secret.
import { createPrivateKey, createPublicKey, hkdfSync, sign, verify } from "node:crypto";
import type { KeyObject } from "node:crypto";
import { TierkvError } from "./errors.ts";
import { readPrivate } from "./private-file.ts";

const SEED_BYTES = 32;
/** DER bytes before the 32 bytes of an Ed25519 key (RFC 8410). */
const PRIVATE_DER = Buffer.from("302e020100300506032b657004220420", "hex");
const PUBLIC_DER = Buffer.from("302a300506032b6570032100", "hex");

/** Derives one key per purpose from a secret. */
export function derive(secret: Buffer, purpose: string, salt: Buffer = Buffer.alloc(0)): Buffer {
  return Buffer.from(hkdfSync("sha256", secret, salt, purpose, SEED_BYTES));
}

export class SigningKey {
  /** 32 bytes. */
  readonly publicKey: Buffer;
  readonly #key: KeyObject;

  constructor(seed: Buffer) {
    const der = Buffer.concat([PRIVATE_DER, seed]);
    this.#key = createPrivateKey({ key: der, format: "der", type: "pkcs8" });
    const exported = createPublicKey(this.#key).export({ format: "der", type: "spki" });
    this.publicKey = exported.subarray(PUBLIC_DER.length);
  }

  sign(bytes: Buffer): Buffer {
    return sign(null, bytes, this.#key);
  }
}

/** Throws for an invalid public key. */
export function isSignedBy(publicKey: Buffer, bytes: Buffer, signature: Buffer): boolean {
  const der = Buffer.concat([PUBLIC_DER, publicKey]);
  const key = createPublicKey({ key: der, format: "der", type: "spki" });
  return verify(null, bytes, key, signature);
}

/** Reads a file of one key of 64 hexadecimal digits. Throws CREDENTIALS. */
export function readSecret(path: string, key: string, use: string): Buffer {
  const text = readPrivate(path, key).trim();
  if (/^[\da-f]{64}$/i.test(text)) return Buffer.from(text, "hex");
  const reason = "it must hold one key of 64 hexadecimal digits";
  throw new TierkvError("CREDENTIALS", {
    path,
    reason,
    fix: `make it with \`openssl rand -hex 32\`${use}`,
  });
}
