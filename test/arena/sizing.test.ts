// Owns the proof of how large an arena becomes, and that saves and restores each get their share.
import fc from "fast-check";
import { expect, test } from "vitest";
import { arenaBytesFor, arenaCeiling, planArena } from "../../src/arena/sizing.ts";
import type { ArenaNeeds } from "../../src/arena/sizing.ts";
import { ARENA_SLOTS_MIN, SAVE_CREDITS_MIN } from "../../src/base/limits/general.ts";

const KIB = 1024;
const MIB = 1024 * KIB;
const GIB = 1024 * MIB;

function needs(fields: Partial<ArenaNeeds>): ArenaNeeds {
  return {
    engine: "e",
    ranks: [[{ bytes: 192 * KIB, tokens: 16, tail: 0 }]],
    maxModelLen: 16_000,
    stepTokens: 2048,
    bytesMax: 4 * GIB,
    freeBytes: 64 * GIB,
    ...fields,
  };
}

test("two longest prompts and the saves", () => {
  const plan = planArena(needs({}));
  expect(plan.slotBytes).toBe(192 * KIB);
  // 128 MiB of saves are 683 slots; a quarter of the slots would be 671.
  expect(plan.slotCount).toBe(2 * 1000 + 683);
  expect(plan.saveSlots).toBe(670);
});

/** Llama-3.1-8B: 2 MiB in a block of 16 tokens. */
const LLAMA = [[{ bytes: 2 * MIB, tokens: 16, tail: 0 }]];

test("at real sizes saves have what a step computes, and the ceiling follows from free memory", () => {
  const real = { ranks: LLAMA, maxModelLen: 32_768, stepTokens: 8192, bytesMax: null };
  // Two prompts of 4 GiB and a step of 1 GiB, where memory allows: the saves' share is in the plan, up to an eighth.
  const large = planArena(needs({ ...real, freeBytes: 512 * GIB }));
  expect(large.slotCount).toBe(2 * 2048 + 512);
  expect(large.saveSlots).toBe(512);
  // A quarter of 24 GiB; an eighth of that is less than a step.
  const small = planArena(needs({ ...real, freeBytes: 24 * GIB }));
  expect([small.slotCount, small.saveSlots]).toEqual([3072, 384]);
  expect(arenaCeiling(24 * GIB)).toBe(6 * GIB);
  // Never below 4 GiB, where that is within half of what is free.
  expect(planArena(needs({ ...real, freeBytes: 9 * GIB })).slotCount).toBe(2048);
  expect(planArena(needs({ ...real, freeBytes: 4 * GIB })).slotCount).toBe(1024);
});

test("of windows and states a prompt takes what a restore needs", () => {
  const tail = { bytes: 2 * MIB, tokens: 16, tail: 65 };
  const ranks = [[...LLAMA[0]!, tail, { ...tail, tail: 1 }]];
  const { slotCount } = planArena(
    needs({ ranks, maxModelLen: 32_768, stepTokens: 16, freeBytes: 512 * GIB, bytesMax: null }),
  );
  expect(slotCount).toBe(2 * (2048 + 65 + 1) + 64);
});

test("a hybrid model whose blocks have 20 MiB gets an arena of a gibibyte", () => {
  // Qwen3.5-9B: attention, and three groups of states.
  const block = { bytes: 20 * MIB, tokens: 528, tail: 1 };
  const ranks = [[{ ...block, tail: 0 }, block, block, block]];
  const plan = planArena(needs({ ranks, maxModelLen: 131_072, bytesMax: GIB }));
  expect([plan.slotCount, plan.saveSlots]).toEqual([51, 7]);
});

test("an arena of the size that is named for a prompt has room for it beside saves", () => {
  for (const slots of [64, 1000, 2048]) {
    const bytesMax = arenaBytesFor(slots, 2 * MIB);
    const plan = planArena(
      needs({
        ranks: LLAMA,
        maxModelLen: 65_536,
        stepTokens: 8192,
        bytesMax,
        freeBytes: 512 * GIB,
      }),
    );
    expect(plan.slotCount - plan.saveSlots).toBeGreaterThanOrEqual(slots);
  }
});

test("slots are whole pages of the largest block of any group and rank", () => {
  const ranks = [5000, 12_289].map((bytes) => [{ bytes, tokens: 16, tail: 0 }]);
  expect(planArena(needs({ ranks })).slotBytes).toBe(16_384);
});

test("the configuration is a ceiling, and so is half of the free memory", () => {
  expect(planArena(needs({ bytesMax: 192 * KIB * 100 })).slotCount).toBe(100);
  expect(planArena(needs({ freeBytes: 192 * KIB * 160 })).slotCount).toBe(80);
});

test("a tiny engine gets a useful arena all the same", () => {
  const ranks = [[{ bytes: 4096, tokens: 16, tail: 0 }]];
  expect(planArena(needs({ ranks, maxModelLen: 64 })).slotCount * 4096).toBe(16 * MIB);
  const large = [[{ bytes: 8 * MIB, tokens: 16, tail: 0 }]];
  expect(planArena(needs({ ranks: large, maxModelLen: 64 })).slotCount).toBe(ARENA_SLOTS_MIN);
});

test.each([
  [{ bytesMax: 2 * MIB }, "10 fit into [sidecar] arena_bytes = 2097152, at least 16", "raise"],
  [{ freeBytes: 4 * MIB }, "10 fit into half of the 4194304 bytes of free memory", "free some"],
])("what does not fit is refused with the fix", (fields, reason, fix) => {
  expect(() => planArena(needs(fields))).toThrow(reason);
  expect(() => planArena(needs(fields))).toThrow(fix);
});

test("saves never get more than a quarter, never less than the least; the ceilings hold", () => {
  const shape = fc.record({
    bytes: fc.integer({ min: 1, max: 64 * MIB }),
    tokens: fc.integer({ min: 1, max: 2048 }),
    tail: fc.integer({ min: 0, max: 64 }),
  });
  const groups = fc.integer({ min: 1, max: 4 });
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 8 }).chain((world) =>
        groups.chain((count) =>
          fc.array(fc.array(shape, { minLength: count, maxLength: count }), {
            minLength: world,
            maxLength: world,
          }),
        ),
      ),
      fc.integer({ min: 1, max: 1_000_000 }),
      fc.integer({ min: 1, max: 100_000 }),
      fc.option(fc.integer({ min: 16 * MIB, max: 64 * GIB })),
      (ranks, maxModelLen, stepTokens, bytesMax) => {
        const given = needs({ ranks, maxModelLen, stepTokens, bytesMax });
        let plan;
        try {
          plan = planArena(given);
        } catch (error) {
          expect((error as { code: string }).code).toBe("ENGINE_REFUSED");
          return;
        }
        const { slotBytes, slotCount, saveSlots } = plan;
        expect(slotBytes % 4096).toBe(0);
        expect(slotBytes * slotCount).toBeLessThanOrEqual(Math.min(bytesMax ?? 16 * GIB, 32 * GIB));
        expect(slotCount).toBeGreaterThanOrEqual(ARENA_SLOTS_MIN);
        expect(saveSlots).toBeGreaterThanOrEqual(SAVE_CREDITS_MIN);
        const share = Math.max(slotCount / 4, SAVE_CREDITS_MIN * ranks.length);
        expect(saveSlots * ranks.length).toBeLessThanOrEqual(share);
      },
    ),
  );
});
