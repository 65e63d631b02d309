// Owns the tests of the fetch ledger: what may follow what, and that every item ends exactly once.
import { beforeEach, describe, expect, test } from "vitest";
import { ItemStatus } from "../../src/block.ts";
import { FetchLedger } from "../../src/client/fetch-ledger.ts";
import type { Piece } from "../../src/wire/messages.ts";

const LIMIT = 1000;
let told: string[];
let ledger: FetchLedger;

beforeEach(() => {
  told = [];
  ledger = new FetchLedger(3, {
    piece: (item, offset, recordBytes, data) =>
      told.push(`${item}: ${offset}+${data.length}/${recordBytes}`),
    missing: (item, status) => told.push(`${item}: ${status}`),
  });
  ledger.begin(LIMIT, (reason) => new Error(reason));
});

function piece(item: number, offset: number, length: number, recordBytes = 100): Piece {
  return { item, offset, recordBytes, data: Buffer.alloc(length), status: 0 };
}

describe("FetchLedger", () => {
  test("passes pieces on and knows when all items have ended", () => {
    ledger.take(piece(0, 0, 60), 0);
    ledger.take(piece(0, 60, 40), 0);
    ledger.take({ ...piece(1, 0, 0, 0), status: ItemStatus.MISSING }, 0);
    expect(ledger.isComplete).toBe(false);
    ledger.take(piece(0, 0, 100), 2);
    expect(ledger.isComplete).toBe(true);
    expect(told).toEqual(["0: 0+60/100", "0: 60+40/100", "1: 3", "2: 0+100/100"]);
  });

  test.each([
    ["an item that was not asked for", [piece(3, 0, 10)], "not asked for"],
    ["a piece after the end", [piece(0, 0, 100), piece(0, 0, 100)], "had ended"],
    ["a gap", [piece(0, 0, 10), piece(0, 20, 10)], "at offset 20, expected 10"],
    ["a duplicate", [piece(0, 0, 10), piece(0, 0, 10)], "at offset 0, expected 10"],
    ["an overrun", [piece(0, 0, 10), piece(0, 10, 91)], "past its record's 100 bytes"],
    ["an empty piece", [piece(0, 0, 0)], "without a byte"],
    ["a changed length", [piece(0, 0, 10), piece(0, 10, 10, 99)], "length changed to 99"],
    ["a record above the limit", [piece(0, 0, 10, LIMIT + 1)], `the limit is ${LIMIT}`],
  ])("refuses %s before the sink sees it", (_name, pieces, reason) => {
    const last = pieces.pop();
    for (const good of pieces) ledger.take(good, 0);
    const before = told.length;
    expect(() => last !== undefined && ledger.take(last, 0)).toThrow(reason);
    expect(told).toHaveLength(before);
  });

  test("closeOpen ends what has not ended, once", () => {
    ledger.take(piece(0, 0, 100), 0);
    ledger.take(piece(1, 0, 50), 0);
    ledger.closeOpen(ItemStatus.INCOMPLETE);
    ledger.closeOpen(ItemStatus.INCOMPLETE);
    expect(told.slice(2)).toEqual(["1: 9", "2: 9"]);
  });

  test("a sink that threw is told nothing more", () => {
    let calls = 0;
    const throwing = new FetchLedger(2, {
      piece: () => {
        calls += 1;
        throw new Error("no slot");
      },
      missing: () => {
        calls += 1;
      },
    });
    throwing.begin(LIMIT, (reason) => new Error(reason));
    expect(() => throwing.take(piece(0, 0, 10), 0)).toThrow("no slot");
    throwing.closeOpen(ItemStatus.INCOMPLETE);
    expect(calls).toBe(1);
  });
});
