// Owns the proof of how large an arena becomes, and that saves and restores each get their share.
import fc from "fast-check";
import { expect, test } from "vitest";
import { planArena } from "../../src/arena/sizing.ts";
import type { ArenaNeeds } from "../../src/arena/sizing.ts";
import { ARENA_SLOTS_MIN, SAVE_CREDITS_MIN } from "../../src/limits.ts";

const KIB = 1024;
const MIB = 1024 * KIB;
const GIB = 1024 * MIB;

function needs(fields: Partial<ArenaNeeds>): ArenaNeeds {
  return {
    engine: "e",
    ranks: [[{ bytes: 192 * KIB, tokens: 16 }]],
    maxModelLen: 16_000,
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

test("slots are whole pages of the largest block of any group and rank", () => {
  const ranks = [[{ bytes: 5000, tokens: 16 }], [{ bytes: 12_289, tokens: 16 }]];
  expect(planArena(needs({ ranks })).slotBytes).toBe(16_384);
});

test("the configuration is a ceiling, and so is half of the free memory", () => {
  expect(planArena(needs({ bytesMax: 192 * KIB * 100 })).slotCount).toBe(100);
  expect(planArena(needs({ freeBytes: 192 * KIB * 160 })).slotCount).toBe(80);
});

test("a tiny engine gets a useful arena all the same", () => {
  const ranks = [[{ bytes: 4096, tokens: 16 }]];
  expect(planArena(needs({ ranks, maxModelLen: 64 })).slotCount * 4096).toBe(16 * MIB);
  const large = [[{ bytes: 8 * MIB, tokens: 16 }]];
  expect(planArena(needs({ ranks: large, maxModelLen: 64 })).slotCount).toBe(ARENA_SLOTS_MIN);
});

test.each([
  [{ bytesMax: 8 * MIB }, "43 fit into [sidecar] arena_bytes = 8388608", "raise"],
  [{ freeBytes: 16 * MIB }, "43 fit into half of the 16777216 bytes of free memory", "free some"],
])("what does not fit is refused with the fix", (fields, reason, fix) => {
  expect(() =>
    planArena(needs({ ...fields, ranks: [[{ bytes: 192 * KIB, tokens: 16 }]] })),
  ).toThrow(reason.replace("43", String(Math.floor((8 * MIB) / (192 * KIB)))));
  expect(() => planArena(needs(fields))).toThrow(fix);
});

test("saves never get more than a quarter, never less than the least; the ceilings hold", () => {
  const shape = fc.record({
    bytes: fc.integer({ min: 1, max: 64 * MIB }),
    tokens: fc.integer({ min: 1, max: 2048 }),
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
      fc.integer({ min: 16 * MIB, max: 64 * GIB }),
      (ranks, maxModelLen, bytesMax) => {
        const given = needs({ ranks, maxModelLen, bytesMax });
        let plan;
        try {
          plan = planArena(given);
        } catch (error) {
          expect((error as { code: string }).code).toBe("ENGINE_REFUSED");
          return;
        }
        const { slotBytes, slotCount, saveSlots } = plan;
        expect(slotBytes % 4096).toBe(0);
        expect(slotBytes * slotCount).toBeLessThanOrEqual(Math.min(bytesMax, 32 * GIB));
        expect(slotCount).toBeGreaterThanOrEqual(ARENA_SLOTS_MIN);
        expect(saveSlots).toBeGreaterThanOrEqual(SAVE_CREDITS_MIN);
        const share = Math.max(slotCount / 4, SAVE_CREDITS_MIN * ranks.length);
        expect(saveSlots * ranks.length).toBeLessThanOrEqual(share);
      },
    ),
  );
});
