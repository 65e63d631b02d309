// Owns the proof that a plan ends at the deepest boundary that all groups can restore, and fetches only the needed blocks.
import { array, assert, constantFrom, integer, property, record, string } from "fast-check";
import { describe, expect, test } from "vitest";
import { newBitmap, setBit } from "../../../src/base/block.ts";
import { chooseBoundary, cutRanges, cutToKeys } from "../../../src/sidecar/restore/boundary.ts";
import type { Boundary } from "../../../src/sidecar/restore/boundary.ts";
import type { LookupGate } from "../../../src/sidecar/vaults/vaults.ts";
import { AT_FIRST } from "../../support/records.ts";

interface Case {
  tokens: number;
  tail: number;
  /** "1" for each held block, "0" for each missing one. */
  held: string;
  from?: number;
}

const hashAt = (number: number): Buffer => Buffer.alloc(32, number);

function choose(cases: readonly Case[], { capacity = 1000, isVaultDown = false } = {}): Boundary {
  const groups = cases.map(({ tokens, tail, held, from = 0 }, group) => ({
    group,
    class: tail === 1 ? ("ssm" as const) : ("kv" as const),
    hashes: Buffer.concat(Array.from(held, (_, block) => hashAt(block + 1))),
    from,
    tokens,
    tail,
    tenant: 0,
  }));
  const answers = cases.map((of) => {
    const held = newBitmap(of.held.length);
    for (const [index, bit] of of.held.split("").entries()) {
      if (bit === "1") setBit(held, index);
    }
    const offers = [
      { ...AT_FIRST, first: 0, end: 2 },
      { ...AT_FIRST, first: 2, end: of.held.length, vault: 1 },
    ];
    return { keyOf: (index: number): string => `${index}`, held, offers };
  });
  const silent = new Set(isVaultDown ? [{} as LookupGate] : []);
  return chooseBoundary(groups, { groups: answers, silent }, capacity);
}

/** Returns the first block's index and the number of blocks, per group. */
const runsOf = ({ ranges }: Boundary): [number, number][] =>
  ranges.map(({ first, count }) => [first, count]);

const FULL = { tokens: 16, tail: 0 };
const STATE = { tokens: 16, tail: 1 };
const WINDOW = { tokens: 16, tail: 2 };

test("groups that need every block end before the first gap of any", () => {
  const held = string({ unit: constantFrom("1", "1", "1", "1", "0"), minLength: 1, maxLength: 40 });
  const group = record({
    tokens: constantFrom(16, 32, 48),
    held,
    from: integer({ min: 0, max: 3 }),
  });
  assert(
    property(
      array(group, { minLength: 1, maxLength: 3 }),
      integer({ min: 0, max: 90 }),
      (all, capacity) => {
        const cases = all.map((of) => ({
          ...of,
          tail: 0,
          from: Math.min(of.from, of.held.length),
        }));
        const start = Math.max(...cases.map(({ from, tokens }) => from * tokens));
        const step =
          [16, 32, 48, 96].find((at) => cases.every(({ tokens }) => at % tokens === 0)) ?? 96;
        const mayEnd = (at: number, most: number): boolean =>
          cases.every(({ held: bits, tokens, from }) => {
            const end = at / tokens;
            return end <= bits.length && !bits.slice(from, end).includes("0");
          }) && cases.reduce((sum, { tokens, from }) => sum + at / tokens - from, 0) <= most;
        const ends = Array.from({ length: 300 }, (_, at) => at * step).filter((at) => at > start);
        const deepest = (most: number): number =>
          Math.max(start, ...ends.filter((at) => mayEnd(at, most)));
        const { tokens, heldTokens } = choose(cases, { capacity });
        expect([tokens, heldTokens]).toEqual([deepest(capacity), deepest(Infinity)]);
      },
    ),
  );
});

describe("attention alone", () => {
  test.each([
    ["1111", 0, 64, [0, 4], null],
    ["1101", 0, 32, [0, 2], "end_of_hit"],
    ["0111", 0, 0, [0, 0], "end_of_hit"],
    ["0111", 1, 64, [1, 3], null],
    ["1111", 4, 64, [4, 0], null],
  ] as const)("%s from %d", (held, from, tokens, range, cut) => {
    const boundary = choose([{ ...FULL, held, from }]);
    expect([boundary.tokens, runsOf(boundary)[0]]).toEqual([tokens, range]);
    expect(boundary.ranges[0]!.cut).toBe(cut);
  });

  test("no block beyond a group's hashes is named, however far another group's own blocks go", () => {
    const boundary = choose([
      { ...FULL, held: "1", from: 1 },
      { ...WINDOW, held: "11111111", from: 8 },
    ]);
    expect(runsOf(boundary)).toEqual([
      [1, 0],
      [8, 0],
    ]);
  });

  test("blocks that do not fit are cut off at the end", () => {
    const boundary = choose([{ ...FULL, held: "1111" }], { capacity: 3 });
    expect([boundary.tokens, boundary.ranges[0]!.cut]).toEqual([48, "no_slot"]);
  });

  test("a vault that did not answer is the reason", () => {
    const boundary = choose([{ ...FULL, held: "1000" }], { isVaultDown: true });
    expect([boundary.tokens, boundary.ranges[0]!.cut]).toEqual([16, "vault_down"]);
  });
});

describe("with recurrent state", () => {
  test("the deepest state with all attention before it", () => {
    const boundary = choose([
      { ...FULL, held: "11110" },
      { ...STATE, held: "01101" },
      { ...STATE, held: "01111" },
    ]);
    expect(boundary.tokens).toBe(48);
    expect(runsOf(boundary)).toEqual([
      [0, 3],
      [2, 1],
      [2, 1],
    ]);
    expect(boundary.ranges[0]!.cut).toBe("end_of_hit");
  });

  test("without a state on every group nothing is fetched", () => {
    const boundary = choose([
      { ...FULL, held: "1111" },
      { ...STATE, held: "0101" },
      { ...STATE, held: "1010" },
    ]);
    expect(boundary.tokens).toBe(0);
    expect(runsOf(boundary).every(([, count]) => count === 0)).toBe(true);
  });

  test("a state the engine has itself is no boundary; attention it has is not fetched", () => {
    const at = (held: string): Boundary =>
      choose([
        { ...FULL, held: "0011", from: 2 },
        { ...STATE, held, from: 2 },
      ]);
    expect(at("0100").tokens).toBe(32);
    expect(runsOf(at("0001"))).toEqual([
      [2, 2],
      [3, 1],
    ]);
  });

  test("a shallower boundary where the deepest does not fit", () => {
    const groups = [
      { ...FULL, held: "1111" },
      { ...STATE, held: "0101" },
    ];
    expect(choose(groups, { capacity: 5 }).tokens).toBe(64);
    const boundary = choose(groups, { capacity: 4 });
    expect([boundary.tokens, boundary.ranges[1]!.cut]).toEqual([32, "no_slot"]);
  });
});

test("a sliding window needs only the blocks it reaches, and those without a gap", () => {
  expect(
    runsOf(
      choose([
        { ...FULL, held: "1111" },
        { ...WINDOW, held: "0011" },
      ]),
    ),
  ).toEqual([
    [0, 4],
    [2, 2],
  ]);
  expect(
    choose([
      { ...FULL, held: "1111" },
      { ...WINDOW, held: "1101" },
    ]).tokens,
  ).toBe(32);
});

test("groups of different block sizes meet where both end a block", () => {
  const boundary = choose([
    { ...FULL, held: "11111" },
    { tokens: 32, tail: 1, held: "11" },
  ]);
  expect(boundary.tokens).toBe(64);
  expect(runsOf(boundary)).toEqual([
    [0, 4],
    [1, 1],
  ]);
});

test("whichever group has the larger blocks, and however long each is", () => {
  const boundary = choose([
    { tokens: 32, tail: 0, held: "11" },
    { ...FULL, held: "111" },
  ]);
  expect([boundary.tokens, boundary.ranges[0]!.cut]).toEqual([32, null]);
  expect(choose([{ tokens: 15, tail: 0, held: "111" }]).tokens).toBe(45);
});

test("where nothing is held the boundary is the engine's own", () => {
  const boundary = choose([
    { ...FULL, held: "0000", from: 4 },
    { tokens: 32, tail: 0, held: "00", from: 1 },
  ]);
  expect([boundary.tokens, boundary.heldTokens]).toEqual([64, 64]);
});

test("a range names the blocks of its part of the prompt, and the one before", () => {
  const rangeFrom = (from: number): Boundary["ranges"][0] =>
    choose([{ ...FULL, held: "11111", from }]).ranges[0]!;
  const { count, keyOf, hashes, parent } = rangeFrom(2);
  expect(Array.from({ length: count }, (_, index) => keyOf(index))).toEqual(["2", "3", "4"]);
  expect(hashes).toEqual(Buffer.concat([3, 4, 5].map(hashAt)));
  expect(parent).toEqual(hashAt(2));
  expect(rangeFrom(1).parent).toEqual(hashAt(1));
  expect(rangeFrom(0).parent).toEqual(Buffer.alloc(32));
});

test("a range has the offers of its part alone, numbered from its first block, also once it is cut", () => {
  const ranges = [0, 1, 2].map((from) => choose([{ ...FULL, held: "11111", from }]).ranges[0]!);
  const offersOf = (all: typeof ranges): number[][][] =>
    all.map(({ offers }) => offers.map(({ first, end, vault }) => [first, end, vault]));
  const [one, other] = [0, 1];
  expect(offersOf(ranges)).toEqual([
    [
      [0, 2, one],
      [2, 5, other],
    ],
    [
      [0, 1, one],
      [1, 4, other],
    ],
    [[0, 3, other]],
  ]);
  const cut = cutRanges(ranges, 48, () => FULL);
  expect(cut.map(({ count, hashes }) => [count, hashes.length / 32])).toEqual([
    [3, 3],
    [2, 2],
    [1, 1],
  ]);
  expect(offersOf(cut)[1]).toEqual([
    [0, 1, one],
    [1, 2, other],
  ]);
});

test("a question is cut where every group ends a block, to no more keys than allowed", () => {
  const of = (group: number, blocks: number, from: number): Parameters<typeof cutToKeys>[0][0] => ({
    group,
    class: "kv",
    hashes: Buffer.alloc(32 * blocks, group),
    from,
  });
  const cut = cutToKeys([of(0, 100, 7), of(1, 50, 30)], (group) => [16, 32][group]!, 40);
  // 13 steps of 32 tokens: 2 blocks of the first group and 1 of the second each.
  expect(cut.map(({ hashes, from }) => [hashes.length / 32, from])).toEqual([
    [26, 7],
    [13, 13],
  ]);
  expect(cut[1]!.hashes.every((byte) => byte === 1)).toBe(true);
  const [odd] = cutToKeys([of(0, 9, 0)], () => 15, 3);
  expect(odd!.hashes).toHaveLength(3 * 32);
});
