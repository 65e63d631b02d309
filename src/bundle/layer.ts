// Owns one layer of a bundle: what is listed of some records, then the records as they are; closed by a key where there is one.
import { createCipheriv, createDecipheriv } from "node:crypto";
import { derive } from "../signing-key.ts";

/** uint32 LE, bytes of the rows | rows as a vault lists them | records in that order. */
const HEAD_BYTES = 4;
const CIPHER = "aes-256-gcm";
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

export function packLayer(rows: Buffer, records: readonly Buffer[]): Buffer {
  const head = Buffer.alloc(HEAD_BYTES);
  head.writeUInt32LE(rows.length);
  return Buffer.concat([head, rows, ...records]);
}

/** null: it is none. */
export function openLayer(bytes: Buffer): { rows: Buffer; records: Buffer } | null {
  if (bytes.length < HEAD_BYTES) return null;
  const end = HEAD_BYTES + bytes.readUInt32LE();
  if (end > bytes.length) return null;
  return { rows: bytes.subarray(HEAD_BYTES, end), records: bytes.subarray(end) };
}

/** Closes the layers of one bundle, whose salt is its own: so that its numbers can be the nonces. */
export class LayerSeal {
  readonly #key: Buffer;

  constructor(secret: Buffer, salt: Buffer) {
    this.#key = derive(secret, "tierkv bundle seal", salt);
  }

  close(bytes: Buffer, number: number): Buffer {
    const cipher = createCipheriv(CIPHER, this.#key, nonceOf(number));
    return Buffer.concat([cipher.update(bytes), cipher.final(), cipher.getAuthTag()]);
  }

  /** null: the key is another. */
  open(bytes: Buffer, number: number): Buffer | null {
    const end = Math.max(0, bytes.length - TAG_BYTES);
    const decipher = createDecipheriv(CIPHER, this.#key, nonceOf(number), {
      authTagLength: TAG_BYTES,
    });
    try {
      decipher.setAuthTag(bytes.subarray(end));
      return Buffer.concat([decipher.update(bytes.subarray(0, end)), decipher.final()]);
    } catch {
      return null;
    }
  }
}

function nonceOf(number: number): Buffer {
  const nonce = Buffer.alloc(NONCE_BYTES);
  nonce.writeUInt32BE(number, NONCE_BYTES - 4);
  return nonce;
}
