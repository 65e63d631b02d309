// Owns the proof that ten thousand generated records are read by the built addon as by Rust alone and by Python (crates/core/tests/generated.rs says how they are made).
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { isTierkvError } from "../../src/errors.ts";
import { crc32c, verifyRecord } from "../support/native.ts";

interface Wanted {
  cases: number;
  taken: number;
  sha256: string;
}

const SEED = 20n;
const HEADER_BYTES = 192;
const [PAYLOAD_CHECKSUM_AT, HEADER_CHECKSUM_AT] = [184, 188];
/** Offset and width. */
const FIELDS = [
  [0, 4],
  [4, 2],
  [6, 2],
  [8, 1],
  [9, 1],
  [10, 1],
  [11, 1],
  [12, 2],
  [14, 2],
  [16, 2],
  [18, 1],
  [19, 1],
  [20, 4],
  [24, 4],
  [28, 4],
  [32, 4],
  [36, 4],
  [40, 8],
  [48, 8],
  [56, 8],
  [64, 8],
  [96, 8],
  [128, 8],
  [160, 8],
  [176, 8],
] as const;
const EDGES = [0n, 1n, 2n, 3n, 4n, 16n, 255n, 65_535n].concat([
  1n << 31n,
  (1n << 32n) - 1n,
  1n << 53n,
  1n << 63n,
]);

const folder = new URL("../vectors/", import.meta.url);
const bases = readdirSync(folder)
  .filter((name) => name.endsWith(".record.bin") && !name.startsWith("refused-"))
  .sort()
  .map((name) => readFileSync(new URL(name, folder)));

const wrap = (value: bigint): bigint => BigInt.asUintN(64, value);

let state = SEED;
/** splitmix64. */
function next(): bigint {
  state = wrap(state + 0x9e3779b97f4a7c15n);
  let mixed = state;
  mixed = wrap((mixed ^ (mixed >> 30n)) * 0xbf58476d1ce4e5b9n);
  mixed = wrap((mixed ^ (mixed >> 27n)) * 0x94d049bb133111ebn);
  return mixed ^ (mixed >> 31n);
}

const below = (drawn: bigint, bound: number): number => Number(drawn % BigInt(bound));

function edit(record: Buffer): void {
  const [at, width] = FIELDS[below(next(), FIELDS.length)]!;
  const [how, drawn] = [below(next(), 3), next()];
  const bytes = Buffer.alloc(8);
  record.copy(bytes, 0, at, at + width);
  let value = wrap(bytes.readBigUInt64LE() + 1n);
  if (how === 0) value = EDGES[below(drawn, EDGES.length)]!;
  if (how === 1) value = drawn >> 11n;
  bytes.writeBigUInt64LE(value);
  bytes.copy(record, at, 0, width);
}

function makeCase(): Buffer {
  let record = Buffer.from(bases[below(next(), bases.length)]!);
  for (let edits = below(next(), 3); edits > 0; edits -= 1) edit(record);
  const [end, drawn] = [below(next(), 8), next()];
  if (end === 0) {
    const at = HEADER_BYTES + below(drawn, record.length - HEADER_BYTES);
    record[at]! ^= 1 << below(drawn >> 32n, 8);
  }
  if (end === 1) record = record.subarray(0, below(drawn, record.length));
  if (end === 2) record = Buffer.concat([record, Buffer.alloc(below(drawn, 5))]);
  const signed = below(next(), 8);
  if (record.length >= HEADER_BYTES && signed >= 2) {
    const payload = record.subarray(HEADER_BYTES);
    if (signed >= 4) record.writeUInt32LE(crc32c(payload), PAYLOAD_CHECKSUM_AT);
    const header = record.subarray(0, HEADER_CHECKSUM_AT);
    record.writeUInt32LE(crc32c(header), HEADER_CHECKSUM_AT);
  }
  return record;
}

/** All fields in the order of their bytes, or the refusal's name. */
function verdictOn(record: Buffer): { isTaken: boolean; words: string } {
  try {
    const { namespace, blockHash, parentHash, ...numbers } = verifyRecord(record);
    const { codec, recordClass, fidelity, layout, group, shard, shardCount, ...more } = numbers;
    const { dtype, parts, tokens, layers, heads, dimK, dimV, ...lengths } = more;
    const { endTokens, payloadBytes, sourceBytes } = lengths;
    const words = [codec, recordClass, fidelity, layout, group, shard, shardCount]
      .concat([dtype, parts, tokens, layers, heads, dimK, dimV])
      .concat([endTokens, payloadBytes, sourceBytes])
      .map((number) => String(BigInt(number)));
    const hashes = [namespace, blockHash, parentHash].map((hash) => hash.toString("hex"));
    return { isTaken: true, words: [...words, ...hashes].join(" ") };
  } catch (error) {
    if (!isTierkvError(error) || error.code !== "BAD_RECORD") throw error;
    return { isTaken: false, words: /\((\w+)\)/.exec(error.message)?.[1] ?? error.message };
  }
}

test("ten thousand generated records are read as in every other language", () => {
  const text = readFileSync(new URL("generated.json", import.meta.url), "utf8");
  const { cases, ...wanted } = JSON.parse(text) as Wanted;
  const lines: string[] = [];
  let taken = 0;
  for (let index = 0; index < cases; index += 1) {
    const record = makeCase();
    const { isTaken, words } = verdictOn(record);
    if (isTaken) taken += 1;
    lines.push(`${crc32c(record).toString(16).padStart(8, "0")} ${words}\n`);
  }
  const sha256 = createHash("sha256").update(lines.join("")).digest("hex");
  expect({ taken, sha256 }).toEqual(wanted);
});
