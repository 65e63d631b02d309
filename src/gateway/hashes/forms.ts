// Owns the forms in which releases of vLLM hash the blocks of a prompt, and the chain of hashes that follows.
import { hash } from "node:crypto";
import { HASH_BYTES } from "../../block.ts";
import { GATEWAY_HASH_BLOCK_TOKENS_MAX, GATEWAY_HASHES_PER_SLICE } from "../../limits/gateway.ts";
import { yieldToLoop } from "../../time.ts";
import { cborOfBlock, cborOfText, pickleOfBlock, pickleOfText } from "./encodings.ts";
import type { EncodeBlock, EncodeText, ExtraKeys } from "./encodings.ts";

/** By vLLM's word (`--prefix-caching-hash-algo`); xxhash names no block that engines share. */
export type Algorithm = "sha256_cbor" | "sha256";
export const ALGORITHMS: readonly Algorithm[] = ["sha256_cbor", "sha256"];

/** As in 0.28 a salt and an adapter's name stand by themselves, as in 0.32 each in a tuple with what it is. */
export type Tagging = "bare" | "tagged";

/** What all hashes of one engine begin with. */
export interface Base {
  algorithm: Algorithm;
  /** vLLM's NONE_HASH: the parent of first blocks. */
  root: Buffer;
}

/** What tells a prompt's blocks apart besides its tokens. */
export interface Apart {
  adapter: { name: string; path: string } | null;
  /** Of the first block alone, and so of all. */
  salt: string | null;
}

export const NOT_APART: Apart = { adapter: null, salt: null };

/** The seed of newer releases where PYTHONHASHSEED is not set; older ones draw the root then. */
export const DEFAULT_SEED = "vllm-none-hash";

const ENCODE: Readonly<Record<Algorithm, { block: EncodeBlock; text: EncodeText }>> = {
  sha256_cbor: { block: cborOfBlock, text: cborOfText },
  sha256: { block: pickleOfBlock, text: pickleOfText },
};

/** In one call: an object for each block takes twice the time. */
const sha256 = (bytes: Uint8Array): Buffer => hash("sha256", bytes, "buffer");

export function rootOf(algorithm: Algorithm, seed: string): Buffer {
  return sha256(ENCODE[algorithm].text(seed));
}

/** null: nothing but its tokens. */
function extraOf({ adapter, salt }: Apart, isFirst: boolean, tagging: Tagging): ExtraKeys | null {
  const isTagged = tagging === "tagged";
  const keys: (string | string[])[] = [];
  if (adapter !== null) keys.push(isTagged ? ["lora", adapter.name, adapter.path] : adapter.name);
  if (isFirst && salt !== null) keys.push(isTagged ? ["cache_salt", salt] : salt);
  return keys.length === 0 ? null : keys;
}

/** Of the tokens from..to; null: no engine has such tokens, or the form is not known of so large blocks. */
export function hashOfBlock(
  { algorithm }: Base,
  parent: Uint8Array,
  tokens: readonly number[],
  [from, to]: readonly [number, number],
  [apart, isFirst, tagging]: readonly [Apart, boolean, Tagging] = [NOT_APART, true, "bare"],
): Buffer | null {
  if (to - from > GATEWAY_HASH_BLOCK_TOKENS_MAX) return null;
  for (let at = from; at < to; at += 1) {
    const token = tokens[at] ?? -1;
    if (token < 0 || token > 0x7fff_ffff) return null;
  }
  return sha256(
    ENCODE[algorithm].block(parent, tokens, from, to, extraOf(apart, isFirst, tagging)),
  );
}

/** Of all full blocks, up to `most`, 32 bytes each; in slices, so that others are served meanwhile. */
export async function hashesOf(
  base: Base,
  tokens: readonly number[],
  blockSize: number,
  [apart, tagging]: readonly [Apart, Tagging],
  most: number = Infinity,
): Promise<Buffer> {
  const count = Math.min(most, Math.floor(tokens.length / blockSize));
  const hashes = Buffer.alloc(count * HASH_BYTES);
  let parent = base.root;
  for (let block = 0; block < count; block += 1) {
    if (block > 0 && block % GATEWAY_HASHES_PER_SLICE === 0) await yieldToLoop();
    const range = [block * blockSize, (block + 1) * blockSize] as const;
    const made = hashOfBlock(base, parent, tokens, range, [apart, block === 0, tagging]);
    if (made === null) return hashes.subarray(0, block * HASH_BYTES);
    made.copy(hashes, block * HASH_BYTES);
    parent = made;
  }
  return hashes;
}

/** As events have it. */
export function lowOf(block: Buffer): bigint {
  return block.readBigUInt64BE(HASH_BYTES - 8);
}
