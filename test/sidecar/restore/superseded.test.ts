// Owns the proof that states which a deeper boundary supersedes go first in their vault, and those that somebody restored to do not.
import { expect, test, vi } from "vitest";
import { packKeys } from "../../../src/block.ts";
import type * as Limits from "../../../src/limits.ts";
import { ATTENTION, openHybrid, STATES } from "../../support/hybrids.ts";
import { rawRecords } from "../../support/raw-calls.ts";
import { makeBlocks } from "../../support/shim-client.ts";
import type { Block } from "../../support/shim-client.ts";
import { until } from "../../support/vaults.ts";

vi.mock("../../../src/limits.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  ORPHAN_WAIT_MS: 20,
  JUNCTIONS_MAX: 2,
}));

const PAGE = 8192;

/** A prompt of eight blocks with states at these; its attention is whole. */
async function openTalk(...states: number[]) {
  const scene = await openHybrid();
  const blocks = makeBlocks("talk", 8, PAGE);
  await scene.store(blocks, ATTENTION);
  await scene.store(
    states.map((index) => blocks[index]!),
    STATES,
  );
  const { counters } = scene.sidecar;
  const isTold = (count: number): Promise<void> =>
    until(() => counters.get("states_superseded") === count, `${count} to be demoted`);
  return { ...scene, blocks, isTold };
}

test("the states before the deepest boundary go first, but those restored to before", async () => {
  const { blocks, ssm, kv, ask, isTold } = await openTalk(1, 3, 4, 7);
  await ask(blocks.slice(0, 2));
  await ask(blocks);
  await isTold(2);
  expect([ssm.counters.get("demoted"), kv.counters.get("demotes")]).toEqual([2, 0]);
  expect(ssm.stats().records).toBe(4);
  // Once is enough: they go first already.
  await ask(blocks);
  await until(() => ssm.counters.get("demotes") === 2, "the second hint");
  expect(ssm.counters.get("demoted")).toBe(2);
});

test("a state that others fetched from the vault is left alone", async () => {
  const { engine, blocks, ssm, ask, isTold } = await openTalk(3, 4, 7);
  const keys = packKeys(blocks[3]!.hash, STATES, 0);
  expect((await rawRecords(ssm, engine.namespace, keys)).size).toBe(1);
  await ask(blocks);
  await isTold(1);
  expect(ssm.counters.get("demotes")).toBe(1);
});

test("where a prompt left what others had computed, its state stays", async () => {
  const { blocks, store, ask, isTold } = await openTalk(2, 7);
  const branch: Block[] = [...blocks.slice(0, 4), ...makeBlocks("branch", 2, PAGE)];
  await ask(branch);
  // It restored to the third block, and computing on left a state at the junction.
  await store([blocks[3]!, blocks[4]!], STATES);
  await ask(blocks);
  await isTold(1);
});

test("only so many junctions are remembered, the latest", async () => {
  const { blocks, store, ask, isTold } = await openTalk(7);
  for (const shared of [1, 2, 3]) {
    await ask([...blocks.slice(0, shared), ...makeBlocks(`branch ${shared}`, 1, PAGE)]);
  }
  await store(blocks.slice(0, 3), STATES);
  await ask(blocks);
  await isTold(1);
});

test("nothing is said where nothing is whole, nor of what lies behind the boundary", async () => {
  const { blocks, ssm, ask, isTold } = await openTalk(3, 4, 7);
  await ask(blocks.slice(0, 3));
  await ask(blocks.slice(0, 4));
  await ask(makeBlocks("elsewhere", 8, PAGE));
  await ask(blocks);
  // The first of the three was restored to.
  await isTold(1);
  expect(ssm.counters.get("demotes")).toBe(1);
});
