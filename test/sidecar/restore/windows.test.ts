// Owns the proof of restores window by window: prompts larger than the arena come whole, and a fault at any window ends the load there.
import { describe, expect, test, vi } from "vitest";
import { packKeys } from "../../../src/base/block.ts";
import type * as CostLimits from "../../../src/base/limits/cost.ts";
import type * as Limits from "../../../src/base/limits/general.ts";
import { Loader } from "../../support/loader.ts";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import type { Scene } from "../../support/scene.ts";
import {
  hashesOf,
  helloFrame,
  makeBlocks,
  makeGroup,
  ShimClient,
} from "../../support/shim-client.ts";
import type { Block, EngineShape } from "../../support/shim-client.ts";
import type { TestSidecarOptions } from "../../support/sidecars.ts";
import { corruptStored } from "../../support/sidecars.ts";
import { MIB, openClient, until } from "../../support/vaults.ts";

// Small, so that a prompt of 20 MiB comes in 20 calls, and is loaded early.
vi.mock("../../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  FETCH_WINDOW_BYTES: 2 ** 20,
}));
vi.mock("../../../src/base/limits/cost.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof CostLimits>()),
  EARLY_BYTES_MIN: 2 ** 20,
}));

const PAGE = 64 * 4096;
const ARENA = 8 * MIB;
/** Two and a half arenas. */
const COUNT = 80;
const SHAPE: EngineShape = {
  hello: { windows: 1 },
  groups: [makeGroup({ layers: 64 })],
  maxModelLen: 4096,
};

interface Restoring extends Scene {
  blocks: Block[];
}

async function openSaved(
  options: TestSidecarOptions = {},
  shape: EngineShape = {},
): Promise<Restoring> {
  const scene = await openScene({ arenaBytes: ARENA, ...options }, { ...SHAPE, ...shape });
  const blocks = makeBlocks("long", COUNT, PAGE, shape.world ?? 1);
  await saveAll(scene, blocks);
  return { ...scene, blocks };
}

function restore({ engine, blocks }: Restoring): Loader {
  return new Loader(engine, engine.prefetch(hashesOf(blocks)), blocks);
}

/** Returns the windows that `tierkv explain` shows of the latest request. */
async function explainedWindows({ sidecar }: Scene): Promise<unknown> {
  const client = new ShimClient(sidecar.socketPath);
  client.send(helloFrame({ role: "status" }));
  client.send({ t: "explain", req: "request", most: 1 });
  const reply = await client.wait("explain_reply");
  return (reply["accounts"] as { windows: number }[])[0]!.windows;
}

test("a prompt larger than the arena comes back whole, and no more than half of the arena is in use", async () => {
  const scene = await openSaved();
  const { engine, sidecar } = scene;
  const { slotCount, saveSlots } = sidecar.status().engines[0]!.arena!;
  expect(slotCount).toBeLessThan(COUNT / 2);
  const loader = restore(scene);
  expect(await loader.done()).toBe("complete");
  expect([loader.right, loader.wrong]).toEqual([COUNT, 0]);
  expect(loader.mostInUse).toBeLessThanOrEqual((slotCount - saveSlots) / 2);
  const held = engine.scheduler.got("held")[0]!;
  expect(held["tokens"]).toBe(COUNT * 16);
  expect(await explainedWindows(scene)).toBe(held["windows"]);
  expect(held["windows"]).toBe(Math.ceil(COUNT / Math.floor((slotCount - saveSlots) / 2)));
  loader.release();
  await expectNoLeak(scene);
  expect(sidecar.counters.get("plans_windowed")).toBe(1);
  expect(sidecar.counters.get("plans_beyond_arena")).toBe(0);
});

test("status names the model's longest prompt for an engine that loads windows", async () => {
  const { sidecar } = await openScene({ arenaBytes: ARENA }, SHAPE);
  expect(sidecar.status().engines[0]!.arena!.longestTokens).toBe(4096);
});

test("two ranks, each with its own half of every block", async () => {
  const scene = await openSaved({}, { world: 2, groups: [makeGroup({ layers: 64 })] });
  const loader = restore(scene);
  expect(await loader.done()).toBe("complete");
  expect([loader.right, loader.wrong]).toEqual([COUNT, 0]);
  loader.release();
  await expectNoLeak(scene);
});

test("nothing is fetched for a large prompt before the engine could begin it", async () => {
  const scene = await openSaved();
  const { engine, sidecar, blocks } = scene;
  const plan = engine.prefetchAhead(hashesOf(blocks));
  const loader = new Loader(engine, plan, blocks);
  const short = makeBlocks("short", 2, PAGE);
  await saveAll(scene, short);
  // A plan behind it is served, and shows that the large one had its chance.
  expect((await engine.done(engine.prefetchAhead(hashesOf(short)))).reason).toBe("complete");
  expect(loader.right).toBe(0);
  expect(sidecar.counters.get("plans_windowed")).toBe(0);
  engine.askFor(plan);
  expect(await loader.done()).toBe("complete");
  expect(loader.right).toBe(COUNT);
});

test("two large prompts pass one after the other, and a short one beside them", async () => {
  const scene = await openSaved();
  const { engine, sidecar } = scene;
  const others = makeBlocks("other", COUNT, PAGE);
  const short = makeBlocks("short", 4, PAGE);
  await saveAll(scene, others);
  await saveAll(scene, short);
  const first = restore(scene);
  first.stop();
  await until(() => first.isToldToLoad, "the first window");
  const second = new Loader(engine, engine.prefetch(hashesOf(others)), others);
  const view = await engine.done(engine.prefetch(hashesOf(short)));
  expect(view.reason).toBe("complete");
  expect(second.right).toBe(0);
  engine.release(view.plan);
  first.go();
  expect(await first.done()).toBe("complete");
  first.release();
  expect(await second.done()).toBe("complete");
  expect([first.right, second.right, first.wrong, second.wrong]).toEqual([COUNT, COUNT, 0, 0]);
  second.release();
  await expectNoLeak(scene);
  expect(sidecar.counters.get("plans_windowed")).toBe(2);
});

test("an engine without windows gets the beginning that fits", async () => {
  const scene = await openSaved({}, { hello: {} });
  const view = await scene.engine.done(scene.engine.prefetch(hashesOf(scene.blocks)));
  expect(view.reason).toBe("no_slot");
  expect(scene.engine.scheduler.got("load")).toEqual([]);
  expect(scene.sidecar.counters.get("plans_beyond_arena")).toBe(1);
});

test("an engine with several groups gets the beginning that fits", async () => {
  const groups = [makeGroup({ layers: 64 }), makeGroup({ group: 1, layers: 64, tail: 2 })];
  const scene = await openScene({ arenaBytes: ARENA }, { ...SHAPE, groups });
  const { engine, sidecar } = scene;
  const blocks = makeBlocks("hybrid", COUNT, PAGE);
  await saveAll(scene, blocks);
  const kv = (group: number): object => ({ group, class: "kv", hashes: hashesOf(blocks), from: 0 });
  for (const block of blocks) {
    await until(() => engine.workers[0]!.credits.length > 0, "a credit");
    engine.save([block], 1);
  }
  await until(() => sidecar.counters.get("blocks_saved") === 2 * COUNT, "all saves");
  const view = await engine.done(engine.prefetchGroups([kv(0), kv(1)] as never));
  expect(view.reason).toBe("no_slot");
  expect(view.placed.get(0)!.length).toBeLessThan(COUNT);
  expect(engine.scheduler.got("load")).toEqual([]);
});

test("a prompt that fits is loaded while the rest comes; its blocks stay in the arena", async () => {
  const scene = await openSaved({ arenaBytes: 64 * MIB });
  const { engine, sidecar, proxy } = scene;
  // A first restore shows the link's rate.
  const first = restore(scene);
  await first.done();
  first.release();
  const early = sidecar.counters.get("plans_loaded_early");
  const more = makeBlocks("more", COUNT, PAGE);
  await saveAll(scene, more);
  proxy.set({ bytesPerSecond: 40 * MIB });
  const loader = new Loader(engine, engine.prefetch(hashesOf(more)), more);
  await until(() => loader.isToldToLoad, "the time to load");
  expect(loader.right).toBeLessThan(COUNT);
  expect(await loader.done()).toBe("complete");
  expect([loader.right, loader.wrong]).toEqual([COUNT, 0]);
  loader.release();
  await expectNoLeak(scene);
  expect(sidecar.counters.get("plans_loaded_early")).toBe(early + 1);
  expect(sidecar.counters.get("plans_windowed")).toBe(0);
  const again = await engine.done(engine.prefetch(hashesOf(more)));
  expect(again.reason).toBe("complete");
  expect(sidecar.counters.get("blocks_restored_local")).toBe(COUNT);
});

test("a link that brings the rest in seconds holds no blocks of the engine meanwhile", async () => {
  const scene = await openSaved({ arenaBytes: 64 * MIB, when: "always" });
  const { engine, proxy } = scene;
  proxy.set({ bytesPerSecond: 4 * MIB });
  const loader = restore(scene);
  await until(() => loader.isToldToLoad, "the time to load");
  // 4 MiB a second; the measured rate may be off by half.
  expect((COUNT - loader.right) * PAGE).toBeLessThan(8 * MIB);
  expect(loader.right).toBeGreaterThan(0);
  engine.release(loader.plan);
});

/** Blocks loaded when the fault comes: in the middle; nightly also in the first window, at its end, in the last one. */
const PLACES = [
  { place: 40, when: {} },
  ...[1, 12, 60].map((place) => ({ place, when: { tags: ["nightly"] } })),
];

describe.each(PLACES)("a fault after $place blocks ends the load there", ({ place, when }) => {
  test(`a vault killed after ${place} blocks`, when, async () => {
    const scene = await openSaved();
    const loader = restore(scene);
    let isKilled = false;
    loader.beforeLoaded = (right) => {
      if (right < place || isKilled) return;
      isKilled = true;
      void scene.proxy.close();
      void scene.vault.close();
    };
    expect(await loader.done()).toBe("vault_down");
    expect(isKilled).toBe(true);
    expect(loader.wrong).toBe(0);
    expect(loader.right).toBeLessThan(COUNT);
    loader.release();
    await expectNoLeak(scene);
  });

  test(`a vault that hangs after ${place} blocks`, when, async () => {
    const scene = await openSaved({ stallMs: 1000 });
    const loader = restore(scene);
    let isHung = false;
    loader.beforeLoaded = (right) => {
      if (right < place || isHung) return;
      isHung = true;
      scene.proxy.set({ hangAt: 1 });
    };
    expect(await loader.done()).toBe("vault_down");
    expect(isHung).toBe(true);
    expect(loader.wrong).toBe(0);
    expect(loader.right).toBeLessThan(COUNT);
    loader.release();
    await expectNoLeak(scene);
  });

  test(`record ${place} is damaged in the vault`, when, async () => {
    const scene = await openSaved();
    const key = packKeys(scene.blocks[place]!.hash, 0, 0);
    corruptStored(scene.engine.namespace, key, 4000);
    const loader = restore(scene);
    expect(await loader.done()).toBe("bad_record");
    expect([loader.right, loader.wrong]).toEqual([place, 0]);
    loader.release();
    await expectNoLeak(scene);
  });

  test(`all is flushed after ${place} blocks`, when, async () => {
    const scene = await openSaved();
    const loader = restore(scene);
    let flush: Promise<unknown> | null = null;
    loader.stop();
    await until(() => loader.isToldToLoad, "the first window");
    loader.beforeLoaded = (right) => {
      if (right < place || flush !== null) return;
      loader.stop();
      flush = openClient(scene.vault)
        .flush(null, 5000)
        .then(() => until(() => scene.sidecar.counters.get("flushes") > 0, "the flush's news"))
        .finally(() => loader.go());
    };
    loader.go();
    expect(["flushed", "end_of_hit"]).toContain(await loader.done());
    expect(flush).not.toBeNull();
    await Promise.resolve(flush);
    expect(loader.wrong).toBe(0);
    expect(loader.right).toBeLessThan(COUNT);
    loader.release();
    await expectNoLeak(scene);
  });
});

describe("an end without a fault of a vault", () => {
  test("a slow vault: each window may take the wait, and all of them together no more", async () => {
    const scene = await openSaved({ waitMs: 600 });
    scene.proxy.set({ bytesPerSecond: 3 * MIB });
    const loader = restore(scene);
    expect(await loader.done()).toBe("deadline");
    expect(loader.wrong).toBe(0);
    expect(loader.right).toBeLessThan(COUNT);
    loader.release();
    await expectNoLeak(scene);
  });

  test("an engine that loads nothing any more: the plan ends at its deadline", async () => {
    const scene = await openSaved({ waitMs: 100 });
    const loader = restore(scene);
    loader.stop();
    expect(await loader.done()).toBe("deadline");
    loader.release();
    await expectNoLeak(scene);
  });

  test("an engine that aborts: its slots return", async () => {
    const scene = await openSaved();
    const loader = restore(scene);
    loader.stop();
    await until(() => loader.isToldToLoad, "the first window");
    scene.engine.release(loader.plan);
    await expectNoLeak(scene);
    expect(loader.right).toBeLessThan(COUNT);
  });

  test("acknowledgements of blocks that were never placed free nothing", async () => {
    const scene = await openSaved();
    const { engine } = scene;
    const loader = restore(scene);
    loader.stop();
    await until(() => loader.isToldToLoad, "the first window");
    const told = { t: "loaded", req: "request", plan: loader.plan, tokens: 2 ** 40 };
    engine.scheduler.send(told);
    loader.go();
    expect(await loader.done()).toBe("complete");
    expect([loader.right, loader.wrong]).toEqual([COUNT, 0]);
    loader.release();
    await expectNoLeak(scene);
  });
});
