// The choice between restoring and computing: what answers first wins, unknown things are tried, the switch overrules.
import { describe, expect, test, vi } from "vitest";
import { BEGIN_MARGIN, LOAD_FADE_MS } from "../../src/base/limits/cost.ts";
import { EngineRates } from "../../src/cost/engine-rates.ts";
import { Link } from "../../src/cost/link.ts";
import { goodputOf } from "../support/goodput.ts";

const MIB = 2 ** 20;
/** 10 us a token, 1 ns a pair: 32k tokens take 0.9 s. */
const stepS = (tokens: number, from: number): number =>
  tokens * 1e-5 + (tokens * from + (tokens * tokens) / 2) * 1e-9;

function learned(isAlways = false): EngineRates {
  const rates = new EngineRates(isAlways);
  for (const from of [0, 2048, 8192, 30_000]) {
    for (const tokens of [128, 512, 2048]) {
      const attended = tokens * from + (tokens * tokens) / 2;
      rates.prefill.learn({ tokens, attended, seconds: stepS(tokens, from) });
    }
  }
  for (const bytes of [1 * MIB, 1 * MIB, 64 * MIB]) {
    rates.loaded(bytes, { copyS: 0.002 + bytes / 10e9 });
  }
  return rates;
}

/** A link of so many bytes per second, with answers after 1 ms. */
function linkOf(rate: number): Link {
  const link = new Link({ down: goodputOf(rate) });
  link.answered(36, 500);
  link.answered(36, 1);
  return link;
}

const TOKENS = 16_384;
const BYTES_PER_TOKEN = 4096;

function choose(rates: EngineRates, link: Link | null, tokens = TOKENS, ahead = 0): string {
  const bytes = tokens * BYTES_PER_TOKEN;
  const offer = { tokens, fetchS: rates.fetchS(link, bytes, ahead), loadBytes: bytes };
  const { choice, why } = rates.choose(0, tokens, [offer]);
  return `${choice} ${why}`;
}

describe("a choice", () => {
  test("is to load over a fast link and to compute where the link is slow", () => {
    expect(choose(learned(), linkOf(1250e6))).toBe("loaded cheaper");
    expect(choose(learned(), linkOf(1.25e6))).toBe("recomputed slow_link");
  });

  test("changes at the break-even: within a fifth of it on either side", () => {
    const rates = learned();
    const bytes = TOKENS * BYTES_PER_TOKEN;
    const gainS = rates.prefill.seconds(0, TOKENS)! - rates.prefill.seconds(TOKENS, TOKENS)!;
    const even = bytes / (gainS - rates.loadS(bytes) - 0.001);
    expect(choose(rates, linkOf(even * 1.2))).toBe("loaded cheaper");
    expect(choose(rates, linkOf(even / 1.2))).toBe("recomputed slow_link");
  });

  test("is to compute where a fetch would win by less than it is worth to begin it, not where all lies here", () => {
    const rates = learned();
    const recomputeS = rates.prefill.seconds(0, TOKENS)!;
    const restS = rates.loadS(0) + rates.prefill.seconds(TOKENS, TOKENS)!;
    const winningBy = (share: number): string => {
      const fetchS = recomputeS / (1 + share) - restS;
      return rates.choose(0, TOKENS, [{ tokens: TOKENS, fetchS, loadBytes: 0 }]).choice;
    };
    expect(winningBy(BEGIN_MARGIN * 0.8)).toBe("recomputed");
    expect(winningBy(BEGIN_MARGIN * 1.2)).toBe("loaded");
    const local = { tokens: 512, fetchS: 0, loadBytes: 0 };
    expect(rates.choose(0, TOKENS, [local]).choice).toBe("local");
  });

  test("counts the bytes that wait on the link already", () => {
    expect(choose(learned(), linkOf(1250e6), TOKENS, 4096 * MIB)).toBe("recomputed slow_link");
  });

  test("is to compute a prompt whose loading alone takes longer", () => {
    const rates = learned();
    const offer = { tokens: 64, fetchS: 0, loadBytes: 64 * BYTES_PER_TOKEN };
    expect(rates.choose(0, 64, [offer])).toMatchObject({ choice: "recomputed", why: "slow_load" });
  });

  test("is to try what is not known: a new engine, a new link", () => {
    expect(choose(new EngineRates(), linkOf(1e6))).toBe("loaded cold");
    expect(choose(learned(), new Link())).toBe("loaded cold");
  });

  test("is to load by an engine whose prompts have all been of one length", () => {
    const rates = new EngineRates();
    for (const seconds of [9, 2.2, 2]) {
      rates.prefill.learn({ tokens: 1027, attended: 1027 ** 2 / 2, seconds });
    }
    expect(choose(rates, linkOf(1250e6), 1024)).toBe("loaded cheaper");
    expect(rates.tokensWorth(0.001, TOKENS)).toBeLessThan(10);
  });

  test("after short steps alone, predicts no multiple of what a long prompt takes", () => {
    // 115 ms a step, 2.5 ms a token, as one without a GPU; 10 ms and 50 us, as one with.
    for (const [base, perToken, most] of [
      [0.115, 0.0025, 1.35],
      [0.01, 0.00005, 2.5],
    ] as const) {
      const rates = new EngineRates();
      rates.prefill.stepTokens = 2048;
      for (const wobble of [1, 1.1, 0.95, 1, 1.05, 0.9]) {
        const attended = 44 * 3412 + 44 ** 2 / 2;
        const seconds = (base + 44 * perToken) * wobble;
        rates.prefill.learn({ tokens: 44, attended, seconds });
      }
      const truth = 2 * base + 3456 * perToken;
      const { prefill } = rates;
      expect(prefill.seconds(0, 3456)! / truth).toBeLessThan(most);
      expect(prefill.seconds(0, 3456)! / truth).toBeGreaterThan(1 / 1.35);
      // One long prompt is enough to know it.
      prefill.learn({ tokens: 2048, attended: 2048 ** 2 / 2, seconds: base + 2048 * perToken });
      expect(Math.abs(prefill.seconds(0, 3456)! / truth - 1)).toBeLessThan(0.15);
    }
  });

  test("takes the prefix that lies here already when the rest is far away", () => {
    const rates = learned();
    const half = TOKENS / 2;
    const offers = [
      { tokens: half, fetchS: 0, loadBytes: half * BYTES_PER_TOKEN },
      { tokens: TOKENS, fetchS: 60, loadBytes: TOKENS * BYTES_PER_TOKEN },
    ];
    const decision = rates.choose(0, TOKENS, offers);
    expect(decision).toMatchObject({ tokens: half, choice: "local", why: "slow_link" });
  });

  test("counts what comes only from when the engine has room for the request", () => {
    const rates = learned();
    const fetchS = rates.prefill.seconds(0, TOKENS)! * 3;
    const offers = [{ tokens: TOKENS, fetchS, loadBytes: 0 }];
    const choiceOf = (waitS: number | null): string =>
      rates.choose(0, TOKENS, offers, { wanted: null, waitS }).choice;
    expect(choiceOf(0)).toBe("recomputed");
    expect(choiceOf(fetchS / 3)).toBe("recomputed");
    expect(choiceOf(fetchS)).toBe("loaded");
    expect(choiceOf(null)).toBe("loaded");
    const loads = [{ tokens: 64, fetchS: 0, loadBytes: 2 ** 30 }];
    expect(rates.choose(0, 64, loads, { wanted: null, waitS: null }).choice).toBe("recomputed");
  });

  test("is always to restore where the configuration says so", () => {
    expect(choose(learned(true), linkOf(1.25e6))).toBe("loaded always");
    expect(learned(true).tokensWorth(1, TOKENS)).toBe(0);
  });

  test("nothing held is nothing to choose", () => {
    expect(learned().choose(0, 64, []).why).toBe("nothing_held");
  });
});

test("the fewest tokens worth asking for are those that take as long to compute", () => {
  const rates = learned();
  const tokens = rates.tokensWorth(0.005, TOKENS);
  const { prefill } = rates;
  const gain = (count: number): number => prefill.seconds(0, count)! - prefill.seconds(0, 0)!;
  expect(gain(tokens)).toBeGreaterThan(0.005);
  expect(gain(tokens - 1)).toBeLessThanOrEqual(0.005);
  expect(new EngineRates().tokensWorth(0.005, TOKENS)).toBe(0);
});

test("a first prompt counts until one of its size follows: what is left after a restore says little of it", () => {
  const rates = new EngineRates();
  const step = (tokens: number, from: number, seconds: number): void =>
    rates.prefill.learn({ tokens, attended: tokens * from + tokens ** 2 / 2, seconds });
  step(3_000, 0, 40);
  expect(rates.prefill.seconds(0, 3_000)).toBeCloseTo(40, -1);
  // 57 tokens in 2.6 s alone would make 3,000 take minutes.
  step(57, 2_943, 2.6);
  expect(rates.prefill.seconds(0, 3_000)).toBeLessThan(50);
  step(3_000, 0, 20);
  expect(rates.prefill.seconds(0, 3_000)).toBeLessThan(25);
});

test("bytes on the wire are learned as a share of the most they could be", () => {
  const rates = new EngineRates();
  expect(rates.wireBytes(1000)).toBe(1000);
  for (let round = 0; round < 20; round += 1) rates.fetched(520, 1000);
  expect(rates.wireBytes(1000)).toBeCloseTo(520);
});

test("the first load is not counted, and a slow one is believed less and less while nothing is loaded", () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  try {
    const rates = new EngineRates();
    rates.loaded(MIB, { copyS: 30, tookS: 40 });
    expect(rates.loadS(MIB)).toBe(0);
    rates.loaded(MIB, { copyS: 2, tookS: 5 });
    expect(rates.loadS(MIB)).toBeCloseTo(2);
    vi.advanceTimersByTime(LOAD_FADE_MS * 4);
    expect(rates.loadS(MIB)).toBeCloseTo(2 / 16);
    // A forecast is no attempt, and keeps what was measured.
    expect(rates.seenLoadS(MIB)).toBeCloseTo(2);
    expect(rates.seenRestoreS(MIB)).toBeCloseTo(5);
    // What an engine with other requests took says nothing.
    rates.loaded(MIB, { copyS: 2 });
    expect(rates.seenRestoreS(MIB)).toBeCloseTo(5);
  } finally {
    vi.useRealTimers();
  }
});
