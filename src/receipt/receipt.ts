// Owns a restore receipt's statement and signature: one request's restored blocks, their namespace, and digests of a sample.
import type { RecordClass } from "../base/block.ts";
import { TierkvError } from "../base/errors.ts";
import { parseObject } from "../base/json.ts";
import { derive, isSignedBy, SigningKey } from "../base/signing-key.ts";

const CONTEXT = "tierkv receipt 1\n";

/** Layout of one group in one rank's record, to decode a page with. */
export interface ReceiptShape {
  group: number;
  shard: number;
  class: RecordClass;
  /** Codes of the record header, docs/protocol.md section 1. */
  layout: number;
  dtype: number;
  tokens: number;
  layers: number;
  /** Decoded bytes of one layer. */
  layerBytes: number;
  heads: number;
  dimK: number;
  dimV: number;
}

export interface ReceiptGroup {
  group: number;
  class: RecordClass;
  /** Index of its first block in the prompt. */
  first: number;
  blocks: number;
}

/** One block whose digest was taken after verifying and decoding. */
export interface ReceiptSample {
  group: number;
  shard: number;
  /** Its index in the prompt. */
  block: number;
  /** Its hash in vaults, in hexadecimal. */
  hash: string;
  /** SHA-256 of its values. */
  digest: string;
}

export interface ReceiptStatement {
  version: 1;
  /** ISO 8601. */
  at: string;
  software: string;
  request: string;
  model: string;
  /** Namespace in vaults, in hexadecimal. */
  namespace: string;
  /** Fidelity of the records: 0, or the id of a lossy codec. */
  fidelity: number;
  /** Restored prompt tokens: after `from`, up to `to`. */
  tokens: { from: number; to: number };
  /** Decoded bytes. */
  bytes: number;
  vaults: string[];
  /** Time saved against computing, ms; null: not known. */
  savedMs: number | null;
  groups: ReceiptGroup[];
  /** SHA-256 of all their blocks' hashes, in this order. */
  hashes: string;
  shapes: ReceiptShape[];
  sample: ReceiptSample[];
}

export interface OpenedReceipt {
  statement: ReceiptStatement;
  /** In hexadecimal. */
  signer: string;
}

export const receiptKey = (secret: Buffer): SigningKey =>
  new SigningKey(derive(secret, "tierkv receipt signing"));

const signedBytes = (statement: object): Buffer =>
  Buffer.from(`${CONTEXT}${JSON.stringify(statement)}`);

export function makeReceipt(statement: ReceiptStatement, key: SigningKey): string {
  const signer = key.publicKey.toString("hex");
  const signature = key.sign(signedBytes(statement)).toString("base64");
  return `${JSON.stringify({ statement, signer, signature }, null, 1)}\n`;
}

/** Verifies a receipt. Throws RECEIPT_REFUSED unless a trusted key (in hexadecimal) signed it unchanged. */
export function openReceipt(
  text: string,
  trusted: readonly string[],
  where: string,
): OpenedReceipt {
  const refused = (reason: string): TierkvError =>
    new TierkvError("RECEIPT_REFUSED", { where, reason });
  const { statement, signer, signature } = parseObject(text) ?? {};
  const isWhole =
    typeof statement === "object" &&
    statement !== null &&
    typeof signer === "string" &&
    typeof signature === "string" &&
    /^[\da-f]{64}$/.test(signer);
  if (!isWhole) throw refused("it is no receipt of tierKV");
  if (!trusted.includes(signer)) {
    throw refused(
      `it is signed by ${signer}, which is no key of this machine's or of --trust; ask who gave it to you for the key`,
    );
  }
  const bytes = Buffer.from(signature, "base64");
  if (!isSignedBy(Buffer.from(signer, "hex"), signedBytes(statement), bytes)) {
    throw refused("its signature is wrong: it was changed after it was signed");
  }
  const said = statement as ReceiptStatement;
  if (said.version !== 1) throw refused("it was made by a newer release; install that one here");
  return { statement: said, signer };
}
