// Owns the gateway's own block names: a hash chain over token ids, equal for all engines whatever names they use.
import { randomToken } from "../../time.ts";

/** 53 bits, exact as a number. A collision of two prefixes only costs a request its best engine. */
export type BlockName = number;

/** Parent of the first block. */
export const ROOT: BlockName = 0;

const HIGH_BITS = 0x1f_ffff;
const HIGH = 2 ** 32;

/** Drawn where no index was saved, so that no client can make up prompts whose names collide. */
export type Seeds = readonly [low: number, high: number];

export function newSeeds(): Seeds {
  const drawn = randomToken(8);
  return [drawn.readInt32LE(0), drawn.readInt32LE(4)];
}

/** Two lanes of MurmurHash3 with separate seeds take a hundredth of a cryptographic hash's time for a block. */
let low = 0;
let high = 0;

function begin(seeds: Seeds, parent: BlockName): void {
  low = seeds[0];
  high = seeds[1];
  mix(parent | 0);
  mix(Math.floor(parent / HIGH));
}

function mix(word: number): void {
  low = step(low, word, 0xcc9e_2d51, 0x1b87_3593);
  high = step(high, word, 0x239b_961b, 0xab0e_9789);
}

/** Works on local variables, because module variables are written to memory at every word. */
function mixAll(tokens: readonly number[], from: number, to: number): void {
  let first = low;
  let second = high;
  for (let at = from; at < to; at += 1) {
    const word = tokens[at] ?? 0;
    first = step(first, word, 0xcc9e_2d51, 0x1b87_3593);
    second = step(second, word, 0x239b_961b, 0xab0e_9789);
  }
  low = first;
  high = second;
}

function step(hash: number, word: number, first: number, second: number): number {
  let key = Math.imul(word, first);
  key = Math.imul((key << 15) | (key >>> 17), second);
  const mixed = hash ^ key;
  return (Math.imul((mixed << 13) | (mixed >>> 19), 5) + 0xe654_6b64) | 0;
}

function spread(hash: number): number {
  let mixed = Math.imul(hash ^ (hash >>> 16), 0x85eb_ca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2_ae35);
  return (mixed ^ (mixed >>> 16)) >>> 0;
}

function end(extra: readonly string[]): BlockName {
  for (const text of extra) {
    mix(~text.length);
    for (let at = 0; at < text.length; at += 1) mix(text.charCodeAt(at));
  }
  // Mixes each lane into the other, so that a collision in one is none in both.
  const first = spread(low ^ Math.imul(high, 0x9e37_79b1));
  return (spread(high + first) & HIGH_BITS) * HIGH + first;
}

/** Names one block; `extra` holds the hash inputs besides its tokens. */
export function nameOf(
  seeds: Seeds,
  parent: BlockName,
  tokens: readonly number[],
  extra: readonly string[],
): BlockName {
  begin(seeds, parent);
  mixAll(tokens, 0, tokens.length);
  return end(extra);
}

/** Names all full blocks of a prompt. `everywhere` enters each block, `salt` the first and so all. */
export function namesOf(
  seeds: Seeds,
  tokens: readonly number[],
  blockSize: number,
  everywhere: readonly string[],
  salt: string | null,
): BlockName[] {
  const names: BlockName[] = [];
  let parent = ROOT;
  for (let at = 0; at + blockSize <= tokens.length; at += blockSize) {
    begin(seeds, parent);
    mixAll(tokens, at, at + blockSize);
    parent = end(at === 0 && salt !== null ? [...everywhere, salt] : everywhere);
    names.push(parent);
  }
  return names;
}
