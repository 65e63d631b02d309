// Owns the proof that an arena that stays smaller than planned restores what it holds.
import { expect, test, vi } from "vitest";
import type * as Native from "../../../src/base/native.ts";
import { openScene, saveAll } from "../../support/scene.ts";
import { hashesOf, makeBlocks } from "../../support/shim-client.ts";

const TOUCHED = 84;
vi.mock("../../../src/base/native.ts", async (importOriginal) => {
  const native = await importOriginal<typeof Native>();
  // Memory that runs out, which no test can bring about everywhere.
  const arenaStatus: typeof native.arenaStatus = (id) => {
    const status = native.arenaStatus(id);
    if (status.touchedSlots <= TOUCHED) return status;
    return { ...status, touchedSlots: TOUCHED, failed: "no memory" };
  };
  return { ...native, arenaStatus };
});

test("a prompt beyond an arena that stays smaller is restored as far as it fits, without a wait", async () => {
  const scene = await openScene({ waitMs: 1_000 });
  const { engine, sidecar } = scene;
  const blocks = makeBlocks("beyond", 32, 8192);
  await saveAll(scene, blocks);
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  const { saveSlots, longestTokens } = sidecar.status().engines[0]!.arena!;
  const room = TOUCHED - saveSlots;
  expect(room).toBeGreaterThan(0);
  expect(room).toBeLessThan(blocks.length);
  expect(view.placed.get(0)).toHaveLength(room);
  expect(view.reason).toBe("no_slot");
  expect(Math.floor(longestTokens / 16)).toBe(room);
});
