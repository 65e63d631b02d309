// Owns the proof, in virtual time, of what the decision is for: earlier first tokens than by load, short prompts beside long ones, room beside a flood.
import { expect, test } from "vitest";
import { quantile } from "../../../bench/lib/figures.js";
import { conversations, onePrefix, simulate, strangers } from "../../../bench/sim/fleet.js";

const [TIGHT, ROOMY] = [40_000, 400_000];

interface Result {
  kind: string;
  held: number;
  reusable: number;
  /** null: it was shed. */
  ttftMs: number | null;
}

const run = simulate as (next: unknown, options: object) => Promise<Result[]>;

const timesOf = (results: readonly Result[]): number[] =>
  results.flatMap(({ ttftMs }) => (ttftMs === null ? [] : [ttftMs]));

test("conversations: more is reused than by load, and first tokens come earlier, the last hundredth, too", async () => {
  for (const [perSecond, cacheTokens, least] of [
    [25, TIGHT, 0.75],
    [45, TIGHT, 0.6],
    [60, ROOMY, 0.98],
  ] as const) {
    const by = (preset: string): Promise<Result[]> =>
      run(conversations(800, perSecond), { preset, cacheTokens, seed: 3 });
    const [ours, byLoad] = [await by("earliest-token"), await by("least-load")];
    const sum = (of: "held" | "reusable"): number =>
      ours.reduce((total, one) => total + one[of], 0);
    expect(sum("held") / sum("reusable"), `${perSecond}/s`).toBeGreaterThan(least);
    for (const at of [0.5, 0.99]) {
      const ratio = quantile(timesOf(byLoad), at) / quantile(timesOf(ours), at);
      expect(ratio, `p${at * 100} at ${perSecond}/s`).toBeGreaterThan(1.05);
    }
  }
});

test("one prefix for all: engines near their capacity share it, none is sent more than it can compute", async () => {
  for (const preset of ["least-load", "prefix-weighted"]) {
    const by = (name: string): Promise<Result[]> =>
      run(onePrefix(800, 100), { preset: name, cacheTokens: ROOMY, seed: 3 });
    const [ours, others] = [await by("earliest-token"), await by(preset)];
    for (const at of [0.5, 0.99]) {
      const ratio = quantile(timesOf(others), at) / quantile(timesOf(ours), at);
      expect(ratio, `${preset}, p${at * 100}`).toBeGreaterThan(1);
    }
  }
});

test("a long prompt a second hardly delays short ones", async () => {
  const short = { kind: "short", perSecond: 40, tokens: () => 200 };
  const long = { kind: "long", perSecond: 1, tokens: () => 12_000 };
  const p99 = async (kinds: object[]): Promise<number> => {
    const options = { preset: "earliest-token", cacheTokens: ROOMY };
    const all = await run(strangers(1500, kinds), options);
    return Number(quantile(timesOf(all.filter(({ kind }) => kind === "short")), 0.99));
  };
  expect((await p99([short, long])) / (await p99([short]))).toBeLessThan(1.5);
});

test("at twice the capacity those taken come in time, and a small tenant is taken beside a flood", async () => {
  const tokens = (): number => 2000;
  const kinds = ["flood", "small"].map((kind) => ({
    kind,
    key: kind,
    perSecond: kind === "flood" ? 104 : 5,
    tokens,
  }));
  const options = { preset: "earliest-token", cacheTokens: ROOMY, ttftMs: 1000 };
  const all = await run(strangers(1500, kinds), options);
  expect(quantile(timesOf(all), 0.99)).toBeLessThan(1100);
  const taken = (wanted: string): number => {
    const own = all.filter(({ kind }) => kind === wanted);
    return own.filter(({ ttftMs }) => ttftMs !== null).length / own.length;
  };
  expect(taken("small")).toBeGreaterThan(0.95);
  expect(taken("flood")).toBeLessThan(0.7);
});
