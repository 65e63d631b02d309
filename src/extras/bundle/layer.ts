// Owns one layer of a bundle: the listing of some records, then the records unchanged; encrypted where there is a key.
import { createCipheriv, createDecipheriv } from "node:crypto";
import { derive } from "../../base/signing-key.ts";

/** Length of the rows (uint32 LE) | rows as a vault lists them | records in that order. */
const HEAD_BYTES = 4;
const CIPHER = "aes-256-gcm";
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

export function packLayer(rows: Buffer, records: readonly Buffer[]): Buffer {
  const head = Buffer.alloc(HEAD_BYTES);
  head.writeUInt32LE(rows.length);
  return Buffer.concat([head, rows, ...records]);
}

/** Splits a layer; null: the bytes are no layer. */
export function openLayer(bytes: Buffer): { rows: Buffer; records: Buffer } | null {
  if (bytes.length < HEAD_BYTES) return null;
  const end = HEAD_BYTES + bytes.readUInt32LE();
  if (end > bytes.length) return null;
  return { rows: bytes.subarray(HEAD_BYTES, end), records: bytes.subarray(end) };
}

/** Encrypts the layers of one bundle. The salt belongs to that bundle alone, so layer numbers can be the nonces. */
export class LayerSeal {
  readonly #key: Buffer;

  constructor(secret: Buffer, salt: Buffer) {
    this.#key = derive(secret, "tierkv bundle seal", salt);
  }

  close(bytes: Buffer, number: number): Buffer {
    const cipher = createCipheriv(CIPHER, this.#key, nonceOf(number));
    return Buffer.concat([cipher.update(bytes), cipher.final(), cipher.getAuthTag()]);
  }

  /** Returns null where the key is another, or the bytes are damaged. */
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
