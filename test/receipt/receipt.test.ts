// Owns the proof that a receipt says what its signer signed, and that its folder keeps the key to itself and the latest ones only.
import { readdirSync, readFileSync, statSync, utimesSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { RECEIPT_BYTES_MAX, RECEIPTS_SCANNED_EVERY } from "../../src/base/limits/receipts.ts";
import { ReceiptFolder } from "../../src/receipt/folder.ts";
import { makeReceipt, openReceipt, receiptKey } from "../../src/receipt/receipt.ts";
import type { ReceiptStatement } from "../../src/receipt/receipt.ts";
import { testDirectory } from "../support/sidecars.ts";

const KEY = receiptKey(Buffer.alloc(32, 7));
const SIGNER = KEY.publicKey.toString("hex");
const STATEMENT: ReceiptStatement = {
  version: 1,
  at: "2026-11-26T12:00:00.000Z",
  software: "0.1.0",
  request: "request",
  model: "test/model",
  namespace: "ab".repeat(32),
  fidelity: 0,
  tokens: { from: 0, to: 32 },
  bytes: 8192,
  vaults: [],
  savedMs: 12.5,
  groups: [{ group: 0, class: "kv", first: 0, blocks: 2 }],
  hashes: "cd".repeat(32),
  shapes: [],
  sample: [{ group: 0, shard: 0, block: 1, hash: "ef".repeat(32), digest: "01".repeat(32) }],
};
const TEXT = makeReceipt(STATEMENT, KEY);

test("a receipt opens as it was made, also when it was laid out anew", () => {
  const opened = { statement: STATEMENT, signer: SIGNER };
  expect(openReceipt(TEXT, [SIGNER], "r")).toEqual(opened);
  expect(openReceipt(JSON.stringify(JSON.parse(TEXT)), [SIGNER], "r")).toEqual(opened);
});

const TAMPERED: [string, string, string][] = [
  ["another digest", `"${"01".repeat(32)}"`, `"${"02".repeat(32)}"`],
  ["more tokens", '"to": 32', '"to": 64'],
  ["another name", `"${"ab".repeat(32)}"`, `"${"ba".repeat(32)}"`],
  ["one more word", '"version": 1', '"more": 1,\n  "version": 1'],
];

test.each(TAMPERED)("F96 a receipt with %s is refused by name", (_what, from, to) => {
  expect(TEXT).toContain(from);
  expect(() => openReceipt(TEXT.replace(from, to), [SIGNER], "r")).toThrow(
    "receipt r: its signature is wrong: it was changed after it was signed",
  );
});

test("who signed it must be known, and it must be one", () => {
  const other = receiptKey(Buffer.alloc(32, 8)).publicKey.toString("hex");
  expect(() => openReceipt(TEXT, [other], "r")).toThrow(
    `it is signed by ${SIGNER}, which is no key`,
  );
  // Its own key in it changes nothing.
  expect(() => openReceipt(TEXT.replace(SIGNER, other), [other], "r")).toThrow(
    "signature is wrong",
  );
  for (const text of ["", "[]", "null", "{}", '{"statement":null,"signer":"","signature":""}']) {
    expect(() => openReceipt(text, [SIGNER], "r")).toThrow("it is no receipt of tierKV");
  }
  const newer = makeReceipt({ ...STATEMENT, version: 2 as 1 }, KEY);
  expect(() => openReceipt(newer, [SIGNER], "r")).toThrow("made by a newer release");
});

test("the folder makes one key, of mode 0600, and gives it again", () => {
  const dir = join(testDirectory(), "receipts");
  const folder = new ReceiptFolder(dir, 5);
  expect(folder.ownKey()).toBeNull();
  const made = folder.key().publicKey;
  expect(new ReceiptFolder(dir, 5).ownKey()?.publicKey).toEqual(made);
  expect(statSync(join(dir, "signing.key")).mode & 0o777).toBe(0o600);
  expect(statSync(dir).mode & 0o777).toBe(0o700);
});

test("the oldest receipts go, the key stays", () => {
  const dir = join(testDirectory(), "receipts");
  const folder = new ReceiptFolder(dir, 3);
  folder.key();
  const nameOf = (at: number): string => at.toString(16).padStart(32, "0");
  const count = RECEIPTS_SCANNED_EVERY + 2;
  for (let at = 0; at < count; at += 1) {
    folder.write(nameOf(at), TEXT);
    utimesSync(join(dir, `${nameOf(at)}.json`), at, at);
  }
  new ReceiptFolder(dir, 3).write(nameOf(count), TEXT);
  const left = [count, count - 1, count - 2].map((at) => `${nameOf(at)}.json`);
  expect(readdirSync(dir).toSorted()).toEqual([...left, "signing.key"].toSorted());
  expect(folder.read(nameOf(count)).text).toBe(readFileSync(join(dir, left[0]!), "utf8"));
  expect(() => folder.read(nameOf(0))).toThrow(/there is none of that name/);
  expect(() => folder.read(join(dir, "nothing"))).toThrow(/there is no such file/);
  writeFileSync(join(dir, "huge"), "x".repeat(RECEIPT_BYTES_MAX + 1));
  expect(() => folder.read(join(dir, "huge"))).toThrow(/at most 262144/);
});
