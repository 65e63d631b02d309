// Owns the proof that parity holds for records of unequal lengths, several shards and growing conversations, and never mixes prompts.
import { expect, test } from "vitest";
import { RUN_BLOCKS } from "../../../src/base/limits/pool.ts";
import { saveAll } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import type { Block, EngineShape } from "../../support/shim-client.ts";
import { openSidecar } from "../../support/sidecars.ts";
import type { TestSidecar, TestSidecarOptions } from "../../support/sidecars.ts";
import { openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";
import type { TestVault } from "../../support/vaults.ts";

const PAGE = 8192;
const COUNT = 64;
const PARITY = { when: "always", waitMs: 30_000, redundancy: "parity" } as const;
const LONG: EngineShape = { maxModelLen: 16 * COUNT };

interface Scene {
  vaults: TestVault[];
  sidecar: TestSidecar;
  engine: FakeEngine;
}

async function open(options: TestSidecarOptions = {}, shape: EngineShape = {}): Promise<Scene> {
  const vaults = [await openVault(), await openVault(), await openVault()];
  const clients = vaults.map((vault) => openClient(vault));
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...PARITY, ...options });
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  return {
    vaults,
    sidecar,
    engine: await FakeEngine.start(sidecar.socketPath, { ...LONG, ...shape }),
  };
}

/** Returns how many blocks of each prompt another sidecar gets without one vault; none may have wrong bytes. */
async function readWithout(
  vaults: readonly TestVault[],
  lost: number,
  prompts: readonly (readonly Block[])[],
  options: TestSidecarOptions = {},
  shape: EngineShape = {},
): Promise<{ counts: number[]; rebuilt: number }> {
  await vaults[lost]!.close();
  const clients = vaults.map((vault) => openClient(vault));
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...PARITY, ...options });
  const engine = await FakeEngine.start(sidecar.socketPath, { ...LONG, ...shape });
  const counts: number[] = [];
  for (const blocks of prompts) {
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    const placed = (view.placed.get(0)?.length ?? 0) / engine.shards;
    expect(blocks.slice(0, placed).filter((block, at) => !engine.holds(view, at, block))).toEqual(
      [],
    );
    counts.push(placed);
    engine.release(view.plan);
  }
  return { counts, rebuilt: sidecar.counters.get("blocks_rebuilt") };
}

const parityOf = ({ sidecar }: Scene): number => sidecar.counters.get("parity_saved");

test.each([
  { name: "lossless, of unequal lengths", options: { kv: "lossless" } as const, world: 1 },
  { name: "of two shards", options: {}, world: 2 },
])("F78 parity: records $name come back", async ({ options, world }) => {
  const scene = await open(options, { world });
  const blocks = makeBlocks("shapes", COUNT, PAGE, world).map((block, at) => {
    // Blocks that lossless shortens, and noise, which it cannot.
    const pages = at % 3 === 0 ? block.pages.map(() => Buffer.alloc(PAGE, at)) : block.pages;
    return { ...block, pages };
  });
  await saveAll(scene, blocks);
  await until(() => parityOf(scene) === (COUNT / 2) * world, "parity records");
  const { counts, rebuilt } = await readWithout(scene.vaults, 0, [blocks], options, { world });
  expect(counts).toEqual([COUNT]);
  expect(rebuilt).toBeGreaterThan(0);
});

/** Returns blocks whose first `count` are those of `of`, and the rest another prompt's. */
function partingFrom(of: readonly Block[], count: number, name: string): Block[] {
  const own = makeBlocks(name, of.length, PAGE);
  return own.map((block, at) => {
    if (at < count) return of[at]!;
    const first = at - (at % RUN_BLOCKS);
    const anchor = first < count ? of[first]!.hash : block.anchor;
    return { ...block, anchor, parent: at === count ? of[at - 1]!.hash : block.parent };
  });
}

test("F78 parity: prompts that part in the middle of a run share no parity record, and each keeps its own", async () => {
  const scene = await open();
  const { vaults, sidecar } = scene;
  const first = makeBlocks("first", COUNT, PAGE);
  const other = partingFrom(first, 10, "other");
  // The first prompt ends where 8 and 9 wait for 10 and 11.
  await saveAll(scene, first.slice(0, 10));
  await until(() => parityOf(scene) === 4, "the first one's");
  await saveAll(scene, other.slice(10));
  // 8 with 10, and 9 with 11, also belong to the other's chain.
  await until(() => parityOf(scene) === COUNT / 2, "the other's");
  await saveAll(scene, first.slice(10));
  await until(() => parityOf(scene) === COUNT / 2 + (COUNT - 12) / 2, "the first one's rest");
  expect(sidecar.counters.get("parity_dropped")).toBe(0);
  const { counts } = await readWithout(vaults, 1, [other, first]);
  expect(counts[0]).toBe(COUNT);
  expect(counts[1]).toBeGreaterThanOrEqual(8);
});

test("F78 parity: a conversation's new blocks are protected turn by turn as soon as a group is whole", async () => {
  const scene = await open();
  const blocks = makeBlocks("turns", COUNT, PAGE);
  for (let at = 0; at < COUNT; at += 5) await saveAll(scene, blocks.slice(at, at + 5));
  await until(() => parityOf(scene) === COUNT / 2, "parity records");
  expect(scene.sidecar.counters.get("parity_incomplete")).toBe(0);
  const { counts } = await readWithout(scene.vaults, 2, [blocks]);
  expect(counts).toEqual([COUNT]);
});

test("F78 parity: another sidecar's earlier record may have other bytes, and is not relied on", async () => {
  const scene = await open();
  const blocks = makeBlocks("twice", COUNT, PAGE);
  await saveAll(scene, blocks.slice(0, 2));
  const engine = await FakeEngine.start(scene.sidecar.socketPath, { ...LONG, engine: "second" });
  const others = makeBlocks("twice", COUNT, PAGE).map((block) => ({
    ...block,
    pages: [Buffer.alloc(PAGE, 7)],
  }));
  engine.save(others.slice(0, 4));
  const { counters } = scene.sidecar;
  await until(() => counters.get("saves_present") === 2, "what was there");
  await until(() => counters.get("blocks_saved") === 4, "what was not");
  await until(() => counters.get("parity_incomplete") === 4, "parity to be given up");
  expect(parityOf(scene)).toBe(0);
});
