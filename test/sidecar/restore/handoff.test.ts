// Owns the proof of hand-offs: a plan waits for another engine's saves, while new ones keep coming.
import { expect, test } from "vitest";
import type { Account } from "../../../src/sidecar/trace/decisions.ts";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import type { Scene } from "../../support/scene.ts";
import {
  FakeEngine,
  hashesOf,
  helloFrame,
  makeBlocks,
  makeGroup,
  ShimClient,
} from "../../support/shim-client.ts";
import type { Block, EngineShape } from "../../support/shim-client.ts";
import type { TestSidecarOptions } from "../../support/sidecars.ts";
import { MIB, until } from "../../support/vaults.ts";

const PAGE = 4096;
const BLOCK_TOKENS = 16;
const BLOCKS = 20;

interface Pair extends Scene {
  producer: FakeEngine;
  /** Asks the answering engine for a prompt, of which so many tokens are handed over. */
  ask(handoff: number): number;
}

/** Opens an engine for which no restore pays, and one that computes for it; they share a namespace. */
async function openPair(options: TestSidecarOptions = {}): Promise<Pair> {
  const scene = await openScene(options);
  const { engine, sidecar, proxy } = scene;
  const shape: EngineShape = { engine: "producer", hello: { producer: 1 } };
  const producer = await FakeEngine.start(sidecar.socketPath, shape);
  const known = makeBlocks("link", 1, PAGE);
  await saveAll(scene, known);
  proxy.set({ bytesPerSecond: 20_000 });
  const plan = engine.prefetch(hashesOf(known));
  await engine.done(plan);
  engine.release(plan);
  proxy.set({ bytesPerSecond: 0 });
  for (const { workers } of [engine, producer]) {
    const steps = [64, 128, 256].map((tokens) => [tokens, (tokens * tokens) / 2, tokens / 8]);
    workers[0]!.send({ t: "counts", counters: { told: 1 }, steps });
  }
  await until(() => sidecar.counters.get("shim_told") === 2, "the steps to be heard");
  return {
    ...scene,
    producer,
    ask(handoff) {
      const groups = [{ group: 0, class: "kv", hashes: hashesOf(blocks), from: 0 }];
      return engine.prefetchGroups(groups, { handoff });
    },
  };
}

const blocks = makeBlocks("handed over", BLOCKS, PAGE);

async function accounts({ sidecar }: Scene): Promise<Account[]> {
  const client = new ShimClient(sidecar.socketPath);
  client.send(helloFrame({ role: "status" }));
  client.send({ t: "explain", req: "", most: 8 });
  const reply = await client.wait("explain_reply");
  client.close();
  return reply["accounts"] as Account[];
}

test("blocks that another engine saves are waited for and restored, even where computing would be faster", async () => {
  const pair = await openPair();
  const { engine, producer, sidecar, ask } = pair;
  const plan = ask(BLOCKS * BLOCK_TOKENS);
  // An engine that was not told of the hand-off is answered at once.
  const untold = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(untold.placed.size).toBe(0);
  engine.release(untold.plan);
  const asks = (): number => sidecar.counters.get("lookup_keys");
  for (const half of [blocks.slice(0, 10), blocks.slice(10)]) {
    const before = asks();
    await until(() => asks() > before + BLOCKS, "further look-ups");
    expect(engine.view(plan).held).toBeNull();
    producer.save(half);
  }
  const view = await engine.done(plan);
  expect([view.reason, view.placed.get(0)?.length]).toEqual(["complete", BLOCKS]);
  expect(engine.holds(view, BLOCKS - 1, blocks[BLOCKS - 1]!)).toBe(true);
  const isOurs = ({ why, choice }: Account): boolean =>
    why === "handed_over" && choice === "loaded";
  expect((await accounts(pair)).filter(isOurs)).toHaveLength(1);
  const { counters } = sidecar;
  expect([counters.get("handoffs"), counters.get("handoffs_late")]).toEqual([1, 0]);
  expect(counters.get("handoff_wait_us")).toBeGreaterThan(0);
  engine.release(plan);
  await expectNoLeak(pair);
});

test("saved blocks of a hand-off are fetched before the rest is saved", async () => {
  const pair = await openPair();
  const { engine, producer, sidecar, ask } = pair;
  const fetched = sidecar.counters.get("bytes_fetched");
  const plan = ask(BLOCKS * BLOCK_TOKENS);
  producer.save(blocks.slice(0, 12));
  const early = (): number => sidecar.counters.get("handoff_blocks_early");
  await until(() => early() === 12, "the fetch of what is there");
  await until(() => sidecar.counters.get("bytes_fetched") > fetched, "its blocks");
  expect(engine.view(plan).held).toBeNull();
  producer.save(blocks.slice(12));
  const view = await engine.done(plan);
  expect([view.reason, view.placed.get(0)?.length]).toEqual(["complete", BLOCKS]);
  for (const [index, block] of blocks.entries())
    expect(engine.holds(view, index, block)).toBe(true);
  engine.release(plan);
  await expectNoLeak(pair);
});

test("a hand-off that is given up leaves no early fetched block in use", async () => {
  const pair = await openPair({ stallMs: 60_000, waitMs: 60_000 });
  const { engine, producer, sidecar, ask } = pair;
  const plan = ask(BLOCKS * BLOCK_TOKENS);
  producer.save(blocks.slice(0, 12));
  await until(() => sidecar.counters.get("handoff_blocks_early") > 0, "an early fetch");
  engine.release(plan);
  await until(() => sidecar.counters.get("handoffs") === 1, "the end of the wait");
  await expectNoLeak(pair);
});

test("F98 an engine that ends while its saved blocks are fetched: they are restored, and the rest computed", async () => {
  const pair = await openPair({ stallMs: 500 });
  const { engine, producer, sidecar, ask } = pair;
  const plan = ask(BLOCKS * BLOCK_TOKENS);
  producer.save(blocks.slice(0, 12));
  await until(() => sidecar.counters.get("handoff_blocks_early") === 12, "an early fetch");
  producer.close();
  const view = await engine.done(plan);
  expect([view.reason, view.placed.get(0)?.length]).toEqual(["end_of_hit", 12]);
  expect(engine.holds(view, 11, blocks[11]!)).toBe(true);
  expect(sidecar.counters.get("handoffs_late")).toBe(1);
  engine.release(plan);
  await until(() => sidecar.status().engines.length === 1, "its end");
  await expectNoLeak(pair);
});

test("F99 two hand-offs that fit an arena one after the other do not wait for each other", async () => {
  /** 64 slots, 48 of them for restores; half of those stay free of early blocks. */
  const size = { arenaBytes: 16 * MIB, waitMs: 20_000 };
  const large = 64 * PAGE;
  const shape = { groups: [makeGroup({ layers: 64 })], maxModelLen: BLOCK_TOKENS * 44 };
  const scene = await openScene(size, shape);
  const { engine, sidecar } = scene;
  const hello = { engine: "producer", hello: { producer: 1 } };
  const producer = await FakeEngine.start(sidecar.socketPath, { ...shape, ...hello });
  const isTouched = (): boolean =>
    sidecar.status().engines.every(({ arena }) => arena?.touchedSlots === 64);
  await until(isTouched, "touched arenas");
  const prompts = ["one", "other"].map((name) => makeBlocks(name, 44, large));
  const plans = prompts.map((prompt) => {
    const groups = [{ group: 0, class: "kv", hashes: hashesOf(prompt), from: 0 }];
    return engine.prefetchGroups(groups, { handoff: prompt.length * BLOCK_TOKENS });
  });
  const save = (of: readonly Block[]): Promise<void> => saveAll({ engine: producer, sidecar }, of);
  const early = (): number => sidecar.counters.get("handoff_blocks_early");
  await save(prompts[0]!.slice(0, 16));
  await until(() => early() === 16, "early blocks of the one");
  await save(prompts[1]!.slice(0, 20));
  // At most half of the room.
  await until(() => early() === 24, "early blocks of the other");
  await save(prompts[0]!.slice(16));
  await save(prompts[1]!.slice(20));
  for (const [at, plan] of plans.entries()) {
    const view = await engine.done(plan);
    expect([view.reason, view.placed.get(0)?.length]).toEqual(["complete", 44]);
    expect(engine.holds(view, 43, prompts[at]![43]!)).toBe(true);
    engine.release(plan);
  }
  await expectNoLeak(scene);
});

test("where nothing new comes, saved blocks are restored, and the rest computed", async () => {
  const pair = await openPair({ stallMs: 300 });
  const { engine, producer, sidecar, ask } = pair;
  producer.save(blocks.slice(0, 5));
  await until(() => sidecar.counters.get("blocks_saved") === 6, "the saves");
  const plan = ask(BLOCKS * BLOCK_TOKENS);
  const view = await engine.done(plan);
  expect([view.reason, view.placed.get(0)?.length]).toEqual(["end_of_hit", 5]);
  expect(sidecar.counters.get("handoffs_late")).toBe(1);
  engine.release(plan);
  await expectNoLeak(pair);
});

test("a plan that is given up waits for nothing any more", async () => {
  const pair = await openPair({ stallMs: 60_000, waitMs: 60_000 });
  const { engine, sidecar, ask } = pair;
  const plan = ask(BLOCKS * BLOCK_TOKENS);
  const before = sidecar.counters.get("lookup_keys");
  await until(() => sidecar.counters.get("lookup_keys") > before, "a look-up");
  engine.release(plan);
  await until(() => sidecar.counters.get("handoffs") === 1, "the end of the wait");
  expect(sidecar.counters.get("handoffs_late")).toBe(0);
});

test("an engine that computes for others saves what no restore of its own would pay for", async () => {
  const { engine, producer, sidecar, proxy } = await openPair();
  proxy.set({ bytesPerSecond: 20_000 });
  engine.save(blocks.slice(0, 2));
  await until(() => sidecar.counters.get("dropped_slow_link") === 2, "the drops");
  producer.save(blocks.slice(2, 4));
  await until(() => sidecar.counters.get("blocks_saved") === 3, "the saves");
});
