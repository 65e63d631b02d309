// Owns our own names of blocks: a chain of digests over token ids, equal for every engine whatever it calls them itself.
import { hash } from "node:crypto";

/** 48 bits: exact as a number. Two different prefixes that share one cost a request its best engine, and nothing else. */
export type BlockName = number;

/** Before the first block. */
export const ROOT: BlockName = 0;

const NAME_BYTES = 6;

/** `tokens` are those of one block, `extra` what else tells it apart. */
export function nameOf(
  parent: BlockName,
  tokens: readonly number[],
  extra: readonly string[],
): BlockName {
  const text = extra.length === 0 ? "" : JSON.stringify(extra);
  const bytes = Buffer.allocUnsafe(NAME_BYTES + tokens.length * 4 + Buffer.byteLength(text));
  bytes.writeUIntBE(parent, 0, NAME_BYTES);
  let at = NAME_BYTES;
  for (const token of tokens) at = bytes.writeUInt32LE(token >>> 0, at);
  bytes.write(text, at);
  return hash("sha1", bytes, "buffer").readUIntBE(0, NAME_BYTES);
}

/** Names of all full blocks of a prompt. `everywhere` tells each block apart, `salt` the first and so all. */
export function namesOf(
  tokens: readonly number[],
  blockSize: number,
  everywhere: readonly string[],
  salt: string | null,
): BlockName[] {
  const names: BlockName[] = [];
  let parent = ROOT;
  for (let at = 0; at + blockSize <= tokens.length; at += blockSize) {
    const extra = at === 0 && salt !== null ? [...everywhere, salt] : everywhere;
    parent = nameOf(parent, tokens.slice(at, at + blockSize), extra);
    names.push(parent);
  }
  return names;
}
