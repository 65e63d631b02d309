// Owns records that hold no model's blocks: random bytes under random names, to put a vault to the test with.
import { classNumber, HASH_BYTES, packKeys } from "../block.ts";
import type { RecordClass } from "../block.ts";
import { writeRecord } from "../native.ts";
import { randomToken } from "../time.ts";
import type { StoreItem } from "./vault-client.ts";

const LAYOUT_OPAQUE = 1;

/** `count` sound opaque records of `payloadBytes` each, of group 0, shard 0; nobody else can have stored other bytes under their keys. */
export function ownRecords(
  namespace: Buffer,
  recordClass: RecordClass,
  count: number,
  payloadBytes: number,
): StoreItem[] {
  return Array.from({ length: count }, () => {
    const blockHash = randomToken(HASH_BYTES);
    const header = {
      codec: 0,
      recordClass: classNumber(recordClass),
      fidelity: 0,
      layout: LAYOUT_OPAQUE,
      group: 0,
      shard: 0,
      shardCount: 1,
      dtype: 0,
      parts: 0,
      tokens: 1,
      layers: 1,
      heads: 0,
      dimK: 0,
      dimV: 0,
      endTokens: 1,
      payloadBytes,
      sourceBytes: payloadBytes,
      namespace,
      blockHash,
      parentHash: Buffer.alloc(HASH_BYTES),
    };
    const record = writeRecord(header, randomToken(payloadBytes));
    return { key: packKeys(blockHash, 0, 0), record };
  });
}
