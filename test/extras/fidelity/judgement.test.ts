// Owns the proof of the judgement of a codec: one verdict, from intervals, against what two exact runs differ by.
import { expect, test } from "vitest";
import { verdictText } from "../../../src/cli/commands/fidelity.ts";
import { finalVerdict, judgement } from "../../../src/extras/fidelity/judgement.ts";
import type { Trio } from "../../../src/extras/fidelity/judgement.ts";
import type { Weighed } from "../../../src/extras/fidelity/likeness.ts";
import { LOSSY } from "../../../src/sidecar/save/codecs.ts";

const BOUND = 1e-4;

/** An answer of one token; `off` moves the likeliest token's probability. */
function answer(off: number, token = 1): Weighed {
  const likely = { "token_id:1": Math.log(0.5 + off), "token_id:2": Math.log(0.5 - off) };
  return { tokenIds: [token], steps: [likely] };
}

/** Divergence of about 2 x off^2. */
const offOf = (kld: number): number => Math.sqrt(kld / 2);

function trio(kld: number, floor = 0, token = 1): Trio {
  const own = answer(0);
  return { computed: answer(offOf(floor)), own, restored: answer(offOf(kld), token) };
}

const many = (count: number, of: (index: number) => Trio): Trio[] =>
  Array.from({ length: count }, (_none, index) => of(index));

test("a codec far from the bound is judged after one round", () => {
  const good = judgement(
    many(8, (index) => trio(1e-5 * (1 + (index % 3)))),
    BOUND,
  );
  expect(good.verdict).toBe("within");
  expect(good.excess).toBeCloseTo(1.9e-5, 5);
  const bad = judgement(
    many(8, (index) => trio(1e-3 * (1 + (index % 3)))),
    BOUND,
  );
  expect(bad.verdict).toBe("beyond");
});

test("near the bound more prompts are needed, and their number decides", () => {
  const near = (index: number): Trio => trio(index % 2 === 0 ? 2e-5 : 1.4e-4);
  expect(judgement(many(4, near), BOUND).verdict).toBe("undecided");
  expect(judgement(many(200, near), BOUND).verdict).toBe("within");
});

test("what two exact runs differ by is not the codec's", () => {
  const rounded = judgement(
    many(16, () => trio(5.2e-4, 5e-4)),
    BOUND,
  );
  expect(rounded.verdict).toBe("within");
  expect(
    judgement(
      many(16, () => trio(5.2e-4)),
      BOUND,
    ).verdict,
  ).toBe("beyond");
});

test("2 of 2 equal answers within the bound are within; with a differing one it is too few to judge", () => {
  const equal = judgement([trio(1e-5), trio(9e-5)], BOUND);
  expect(equal.verdict).toBe("undecided");
  expect(finalVerdict(equal, BOUND)).toBe("within");
  const other = judgement([trio(1e-5), trio(9e-5, 0, 2)], BOUND);
  expect(finalVerdict(other, BOUND)).toBe("undecided");
  const wide = judgement([trio(1e-5), trio(9e-4)], BOUND);
  expect(finalVerdict(wide, BOUND)).toBe("undecided");
  expect(finalVerdict(judgement([trio(1)], BOUND), BOUND)).toBe("undecided");
});

test.each(["within", "beyond", "undecided"] as const)(
  "the verdict %s fits the dtype",
  (verdict) => {
    const ownCache = judgement([trio(0)], BOUND).ownCache;
    const result = { verdict, excess: 2e-4, prompts: 12, ownCache };
    const texts = (["f32", "bf16"] as const).map((dtype) =>
      verdictText(LOSSY.name, result, { bound: BOUND, dtype }),
    );
    for (const text of texts) {
      const claims = ["Within", "Beyond", "Not enough"].filter((claim) => text.includes(claim));
      expect(claims).toHaveLength(1);
    }
    expect(texts[0]).not.toContain("float32");
    expect(texts[1]).toContain("--dtype float32");
  },
);
