// Owns the proof of the demo's table and of its JSON.
import { expect, test } from "vitest";
import type { Kind, Trial } from "../../src/demo/proof.ts";
import { resultLines, resultObject } from "../../src/demo/report.ts";

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

test("the table shows what was restored, moved and won", () => {
  const [head, rule, ...rows] = resultLines(TRIALS);
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
  expect(resultLines([cold!, own!, other])[4]).toMatch(/DIFFERENT$/);
  const lossy = { ...other, codec: "int8" as const };
  expect(resultLines([cold!, own!, lossy])[4]).toMatch(/see below$/);
});

test("the JSON says whether it is proven, and everything that was measured", () => {
  expect(resultObject(TRIALS, [], { dtype: "float32" })).toMatchObject({
    ok: true,
    dtype: "float32",
    problems: [],
    requests: [
      { name: "cold", ttftMs: 15_000, ratioToCold: 1 },
      { name: "own hit", ownTokens: 896, isSameTokens: true },
      { name: "restored", restoredTokens: 896, vaultBlocks: 7, ratioToCold: 60, tokenIds: [4, 5] },
    ],
  });
  expect(resultObject(TRIALS.slice(0, 2), [], {})).toMatchObject({ ok: false });
});
