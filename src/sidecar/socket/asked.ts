// Owns the names of blocks in frames of the local socket: namespace, hashes by group, and a receipt.
import { asBuffer, HASH_BYTES, NAMESPACE_BYTES, toNamespace } from "../../base/block.ts";
import type { Namespace, RecordClass } from "../../base/block.ts";
import { GROUPS_MAX } from "../../base/limits/general.ts";
import { recordKeysNamespace } from "../../base/native.ts";
import type { Reader } from "./reader.ts";

export interface PrefetchGroup {
  group: number;
  class: RecordClass;
  hashes: Buffer;
  from: number;
}

/** Reads a namespace as a copy, because it outlives the frame. With sealed records it is the name that vaults know. */
export function readNamespace(message: Reader): Namespace {
  const bytes = message.bytes("namespace", NAMESPACE_BYTES, NAMESPACE_BYTES);
  return toNamespace(recordKeysNamespace(bytes));
}

export function parseAsked(message: Reader, hashesMax: number): PrefetchGroup[] {
  return message.maps("groups", 1, GROUPS_MAX).map((group) => {
    const hashes = group.bytes("hashes", 0, hashesMax * HASH_BYTES);
    if (hashes.length % HASH_BYTES !== 0) {
      throw group.wrong("hashes", `a multiple of ${HASH_BYTES} bytes`);
    }
    return {
      group: group.u32("group", 0, 0xffff),
      class: group.oneOf("class", ["kv", "ssm"]),
      hashes: asBuffer(hashes),
      from: group.u32("from", 0, hashes.length / HASH_BYTES),
    };
  });
}

/** Blocks of an engine that hands over: its namespace, the tokens per block, and the hash of each. */
export interface LongerBlocks {
  namespace: Namespace;
  tokens: number;
  hashes: Buffer;
}

/** Reads longer blocks; copies the hashes, because they are asked for until all blocks are held. */
export function parseLonger(message: Reader, hashesMax: number): LongerBlocks {
  const hashes = message.bytes("hashes", HASH_BYTES, hashesMax * HASH_BYTES);
  if (hashes.length % HASH_BYTES !== 0) {
    throw message.wrong("hashes", `a multiple of ${HASH_BYTES} bytes`);
  }
  const tokens = message.u32("tokens", 1);
  return { namespace: readNamespace(message), tokens, hashes: Buffer.from(hashes) };
}

/** Reads the name of a receipt, which becomes part of a file's name. */
export function parseReceipt(message: Reader): string {
  const name = message.text("receipt", 32);
  if (/^[\da-f]{32}$/.test(name)) return name;
  throw message.wrong("receipt", "32 hexadecimal digits");
}
