// Owns the proof that the demo passes only when the counters show restores from the vault with the same tokens.
import { expect, test } from "vitest";
import {
  cacheableTokens,
  findProblems as problemsAmong,
  movedBetween,
} from "../../../src/extras/demo/proof.ts";
import type { Kind, Moved, Trial } from "../../../src/extras/demo/proof.ts";
import type { Snapshot } from "../../../src/extras/stand/stage.ts";

const PROMPT = 10_006;
const FULL = 78 * 128;
const NOTHING: Moved = {
  ownTokens: 0,
  restoredTokens: 0,
  vaultBlocks: 0,
  localBlocks: 0,
  fetchedBytes: 0,
  servedBytes: 0,
};
const FROM_VAULT: Moved = {
  ...NOTHING,
  restoredTokens: FULL,
  vaultBlocks: 78,
  fetchedBytes: 1e8,
  servedBytes: 1e8,
};

function trial(
  kind: Kind,
  moved: Partial<Moved>,
  tokenIds = [1, 2, 3],
  promptTokens = PROMPT,
): Trial {
  return {
    name: kind,
    kind,
    codec: "raw",
    answer: { ttftMs: 100, tokenIds, text: "", promptTokens },
    moved: { ...NOTHING, ...moved },
  };
}

const findProblems = (trials: readonly Trial[]): string[] =>
  problemsAmong(trials, ["cold", "own", "restore"]);

const COLD = trial("cold", {});
const OWN = trial("own", { ownTokens: FULL });
const RESTORED = trial("restore", FROM_VAULT);

test("three good trials prove the restore, also when the cold run rounded differently", () => {
  expect(findProblems([COLD, OWN, RESTORED])).toEqual([]);
  expect(findProblems([trial("cold", {}, [9, 9, 9]), OWN, RESTORED])).toEqual([]);
});

test("INT8 may change a token, and must halve the bytes", () => {
  const lossy = { ...trial("restore", { ...FROM_VAULT, fetchedBytes: 5e7 }, [1, 2, 9]) };
  const trials = [COLD, OWN, RESTORED];
  expect(findProblems([...trials, { ...lossy, codec: "int8" }])).toEqual([]);
  expect(findProblems([...trials, lossy])).toEqual([expect.stringContaining("token ids differ")]);
  const large = { ...lossy, codec: "int8" as const, moved: FROM_VAULT };
  expect(findProblems([...trials, large])).toEqual([expect.stringContaining("came as INT8")]);
});

test("every way a restore can be something else is named", () => {
  const cases: [Partial<Moved>, string][] = [
    [{ ownTokens: 128 }, "own cache still held 128 tokens"],
    [{ localBlocks: 3 }, "3 blocks came from the sidecar's memory"],
    [{ restoredTokens: 70 * 128, vaultBlocks: 70 }, "only 8960 of 9984 tokens were restored"],
    [{ vaultBlocks: 40 }, "78 blocks restored, but only 40 came from the vault"],
    [{ fetchedBytes: 0 }, "the sidecar fetched no bytes"],
    [{ servedBytes: 0 }, "the vault served no bytes"],
  ];
  for (const [change, problem] of cases) {
    const problems = findProblems([COLD, OWN, trial("restore", { ...FROM_VAULT, ...change })]);
    expect(problems).toEqual([expect.stringContaining(problem)]);
  }
});

test("one other token id is enough to fail", () => {
  const problems = findProblems([COLD, OWN, trial("restore", FROM_VAULT, [1, 2, 4])]);
  expect(problems).toEqual([expect.stringContaining("token ids differ")]);
});

test("an answer that ends earlier than its reference is another answer", () => {
  const problems = findProblems([COLD, OWN, trial("restore", FROM_VAULT, [1, 2])]);
  expect(problems).toEqual([expect.stringContaining("token ids differ")]);
});

test("a warm cold run and a cold own hit are no measure", () => {
  expect(findProblems([trial("cold", { restoredTokens: 128 }), OWN, RESTORED])).toHaveLength(1);
  expect(findProblems([trial("cold", { ownTokens: 128 }), OWN, RESTORED])).toHaveLength(1);
  expect(findProblems([COLD, trial("own", {}), RESTORED])).toHaveLength(1);
  expect(
    findProblems([COLD, trial("own", { ownTokens: FULL, restoredTokens: 128 }), RESTORED]),
  ).toHaveLength(1);
});

test("without a restore, or without its reference, nothing is proven", () => {
  expect(findProblems([COLD, OWN])).toEqual(["there was no restore request"]);
  expect(findProblems([COLD, RESTORED])).toHaveLength(2);
  expect(findProblems([])).toHaveLength(3);
});

test("a prompt without a full block cannot prove anything", () => {
  const short = { ownTokens: 0, restoredTokens: 0, vaultBlocks: 0 };
  const problems = findProblems([
    trial("cold", {}, [1], 100),
    trial("own", short, [1], 100),
    trial("restore", { ...FROM_VAULT, ...short }, [1], 100),
  ]);
  expect(problems).toHaveLength(2);
});

test("the last token is never cached", () => {
  expect([1, 128, 129, 256, 257].map(cacheableTokens)).toEqual([0, 0, 128, 128, 256]);
});

test("what moved is the difference of the counters, a new one counted from zero", () => {
  const before: Snapshot = {
    engine: { own: 5, restored: 10 },
    sidecar: { blocks_restored_vault: 1, bytes_fetched: 100 },
    vault: { fetched_bytes: 50 },
    vaultRecords: 0,
  };
  const after: Snapshot = {
    engine: { own: 5, restored: 266 },
    sidecar: { blocks_restored_vault: 3, blocks_restored_local: 1, bytes_fetched: 300 },
    vault: { fetched_bytes: 250 },
    vaultRecords: 2,
  };
  expect(movedBetween(before, after)).toEqual({
    ownTokens: 0,
    restoredTokens: 256,
    vaultBlocks: 2,
    localBlocks: 1,
    fetchedBytes: 200,
    servedBytes: 200,
  });
});
