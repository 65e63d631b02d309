// Owns the proof of the demo's table and of its JSON.
import { expect, test } from "vitest";
import type { Kind, Trial } from "../../../src/extras/demo/proof.ts";
import type { Reader } from "../../../src/extras/demo/reader.ts";
import { problemsIn, resultLines, resultObject } from "../../../src/extras/demo/report.ts";
import type { Reading } from "../../../src/extras/demo/scenario.ts";
import type { Codec } from "../../../src/extras/stand/workspace.ts";

function trial(name: string, kind: Kind, ttftMs: number, tokens: [number, number]): Trial {
  const [ownTokens, restoredTokens] = tokens;
  const blocks = restoredTokens / 128;
  const bytes = blocks * 1_573_056;
  return {
    name,
    kind,
    codec: "raw",
    answer: { ttftMs, tokenIds: [4, 5], text: "ab", promptTokens: 1_000 },
    moved: {
      ownTokens,
      restoredTokens,
      vaultBlocks: blocks,
      localBlocks: 0,
      fetchedBytes: bytes,
      servedBytes: bytes,
    },
  };
}

const TRIALS = [
  trial("cold", "cold", 15_000, [0, 0]),
  trial("own hit", "own", 200, [896, 0]),
  trial("restored", "restore", 250, [0, 896]),
];

/** The trained model: a text of which 768 tokens are held, and answers to it. */
function reading(name: string, kind: Kind, codec: Codec, tokenIds: number[]): Trial {
  const restoredTokens = kind === "restore" ? 768 : 0;
  const ownTokens = kind === "own" ? 768 : 0;
  const { answer, moved } = trial(name, kind, 100, [ownTokens, restoredTokens]);
  const fetchedBytes = codec === "int8" ? moved.fetchedBytes / 2 : moved.fetchedBytes;
  const said = { ...answer, tokenIds, text: "return\nself", promptTokens: 790 };
  return { name, kind, codec, answer: said, moved: { ...moved, fetchedBytes } };
}

const READINGS = [
  reading("computed", "cold", "raw", [1, 2, 3]),
  reading("own hit", "own", "raw", [1, 2, 3]),
  reading("restored", "restore", "raw", [1, 2, 3]),
  reading("restored as INT8", "restore", "int8", [1, 9, 3]),
];
const READER: Reader = {
  model: { path: "/models/small", lengthMax: 4_096 },
  task: "text",
  what: "/models/small: named by --model",
  passedOver: ["the hub did not answer"],
};
const ASKED = "is asked about a document: why?";
const readingOf = (trials: Trial[]): Reading => ({ reader: READER, asked: ASKED, trials });
const RESULT = { trials: TRIALS, reading: readingOf(READINGS), real: [] };

test("the table shows what was restored, moved and won", () => {
  const [head, rule, ...rows] = resultLines(RESULT);
  expect(head).toMatch(
    /^request +tokens from own cache +tokens restored +bytes moved +TTFT +vs cold +token ids$/,
  );
  expect(rule).toMatch(/^[- ]+$/);
  expect(rows[0]).toMatch(/^cold +0 +0 +0 B +15\.0 s +1\.0x +identical$/);
  expect(rows[1]).toMatch(/^own hit +896 +0 +0 B +0\.20 s +75x +reference$/);
  expect(rows[2]).toMatch(/^restored +0 +896 +11\.0 MB +0\.25 s +60x +identical$/);
});

test("other token ids are shown as different", () => {
  const [cold, own, restored] = TRIALS;
  const other = { ...restored!, answer: { ...restored!.answer, tokenIds: [4, 6] } };
  expect(resultLines({ ...RESULT, trials: [cold!, own!, other] })[4]).toMatch(/DIFFERENT$/);
  const lossy = { ...other, codec: "int8" as const };
  expect(resultLines({ ...RESULT, trials: [cold!, own!, lossy] })[4]).toMatch(/see below$/);
});

test("the JSON says whether it is proven, and everything that was measured", () => {
  expect(resultObject(RESULT, { dtype: "float32" })).toMatchObject({
    ok: true,
    dtype: "float32",
    problems: [],
    requests: [
      { name: "cold", ttftMs: 15_000, ratioToCold: 1 },
      { name: "own hit", ownTokens: 896, isSameTokens: true },
      { name: "restored", restoredTokens: 896, vaultBlocks: 7, ratioToCold: 60, tokenIds: [4, 5] },
    ],
  });
  expect(resultObject({ ...RESULT, trials: TRIALS.slice(0, 2) }, {})).toMatchObject({ ok: false });
});

test("each readable answer stands in one line with how much of it is the same", () => {
  const lines = resultLines(RESULT).slice(-7);
  expect(lines.slice(0, 3)).toEqual([
    "Passed over: the hub did not answer.",
    "/models/small: named by --model",
    "is asked about a document: why? (790 tokens)",
  ]);
  expect(lines[3]).toMatch(/^ {2}computed +"return\\nself" \(the same 3 tokens, 0 B moved\)$/);
  expect(lines[4]).toBe('  own hit            "return\\nself" (the reference)');
  expect(lines[5]).toMatch(/^ {2}restored +"return\\nself" \(the same 3 tokens, 9.4 MB moved\)$/);
  expect(lines[6]).toMatch(/^ {2}restored as INT8 +"return\\nself" \(first 1 of 3 tokens, /);
});

test("of readable answers an exact one must say the same, and each must be restored", () => {
  const [cold, own, exact, lossy] = READINGS;
  const differs = { ...exact!, answer: { ...exact!.answer, tokenIds: [1, 2, 4] } };
  expect(problemsIn({ ...RESULT, reading: readingOf([cold!, own!, differs, lossy!]) })).toEqual([
    expect.stringMatching(/^model that reads, restored: its token ids differ/),
  ]);
  const computed = { ...lossy!, moved: { ...lossy!.moved, restoredTokens: 0, vaultBlocks: 0 } };
  expect(problemsIn({ ...RESULT, reading: readingOf([cold!, own!, exact!, computed]) })).toEqual([
    "model that reads, restored as INT8: only 0 of 768 tokens were restored",
  ]);
});

test("a published model's KV has a table of its own, and must be restored, too", () => {
  const real = [
    trial("cold", "cold", 52_000, [0, 0]),
    trial("own hit", "own", 170, [896, 0]),
    trial("restored", "restore", 660, [0, 896]),
  ];
  const lines = resultLines({ ...RESULT, real });
  expect(lines.filter((line) => line.startsWith("request "))).toHaveLength(2);
  expect(lines.some((line) => /^restored +0 +896 .* 79x +identical$/.test(line))).toBe(true);
  const partly = { ...real[2]!, moved: { ...real[2]!.moved, restoredTokens: 128 } };
  expect(problemsIn({ ...RESULT, real: [real[0]!, real[1]!, partly] })).toEqual([
    "KV of Llama-3.1-8B, restored: only 128 of 896 tokens were restored",
  ]);
  expect(resultObject({ ...RESULT, real }, {})).toMatchObject({
    realSize: [{ ratioToCold: 1 }, {}, { restoredTokens: 896 }],
  });
});
