// Owns the proof of an engine's start and end: arena, credits, ranks, one end for all, a new arena for each life.
import { existsSync, readlinkSync, statSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { SAVE_CREDITS_MIN } from "../../../src/base/limits/general.ts";
import { arenaPath } from "../../support/arena-files.ts";
import { FakeEngine, FakeWorker, hashesOf, helloFrame } from "../../support/shim-client.ts";
import { makeBlocks, makeGroup, ShimClient } from "../../support/shim-client.ts";
import { openSidecar, openStack, testDirectory } from "../../support/sidecars.ts";
import { MIB, until } from "../../support/vaults.ts";

const PAGE = 8192;

async function refusal(client: ShimClient): Promise<string> {
  return (await client.wait("refuse"))["message"] as string;
}

function register(groups: readonly object[]): Record<string, unknown> {
  return {
    t: "register",
    model: "test/model",
    max_model_len: 512,
    step_tokens: 512,
    kv_blocks: 100,
    groups,
  };
}

describe("coming up", () => {
  test("slots are granted and restores switched on only after the arena is mapped", async () => {
    const { socketPath } = await openSidecar();
    const scheduler = new ShimClient(socketPath);
    scheduler.send(helloFrame({ role: "scheduler" }));
    const worker = new FakeWorker(socketPath, 0, [makeGroup()], false);
    worker.send(helloFrame({}));
    worker.send(register([makeGroup()]));
    await worker.wait("arena");
    await new Promise((resolve) => {
      setTimeout(resolve, 150);
    });
    expect(worker.got("credits")).toEqual([]);
    expect(scheduler.got("restore")).toEqual([]);
    worker.send({ t: "mapped", arena: worker.arena });
    await worker.wait("credits");
    expect(await scheduler.wait("restore")).toMatchObject({ arena: worker.arena, on: true });
  });

  test("the arena waits for all ranks", async () => {
    const { socketPath } = await openSidecar();
    const [first, second] = [0, 1].map((rank) => new FakeWorker(socketPath, rank, [makeGroup()]));
    first!.send(helloFrame({ world: 2 }));
    first!.send(register([makeGroup()]));
    first!.send({ t: "ping", n: 1 });
    await first!.wait("pong");
    expect(first!.got("arena")).toEqual([]);
    second!.send(helloFrame({ world: 2, rank: 1 }));
    second!.send(register([makeGroup()]));
    await first!.wait("arena");
    expect(await second!.wait("arena")).toEqual(await first!.wait("arena"));
  });

  test("a scheduler that comes last is told that restores are on", async () => {
    const { socketPath } = await openSidecar();
    const worker = new FakeWorker(socketPath, 0, [makeGroup()]);
    worker.send(helloFrame({}));
    worker.send(register([makeGroup()]));
    await worker.wait("credits");
    const scheduler = new ShimClient(socketPath);
    scheduler.send(helloFrame({ role: "scheduler" }));
    expect(await scheduler.wait("restore")).toMatchObject({ on: true });
  });

  test("the slot fits the largest group, the count two longest prompts and the saves", async () => {
    const { socketPath, status } = await openSidecar();
    const groups = [makeGroup(), makeGroup({ group: 1, layers: 5 })];
    const engine = await FakeEngine.start(socketPath, { groups, maxModelLen: 8000 });
    const { arena } = status().engines[0]!;
    expect(arena!.slotBytes).toBe(5 * 4096);
    expect(arena!.slotCount).toBeGreaterThanOrEqual(2 * 2 * 500);
    expect(engine.workers[0]!.slotBytes).toBe(5 * 4096);
  });

  test("with arena_dir the arena is a file of mode 0600 there, gone with the engine", async () => {
    const directory = testDirectory();
    const { socketPath } = await openSidecar({ arenaDir: directory });
    const engine = await FakeEngine.start(socketPath);
    const path = readlinkSync(arenaPath(engine.workers[0]!.arena));
    expect(path.startsWith(`${directory}/`)).toBe(true);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    engine.close();
    await until(() => !existsSync(path), "the file to go");
  });

  test("without it the arena is a memfd", async () => {
    const { socketPath } = await openSidecar();
    const engine = await FakeEngine.start(socketPath);
    expect(readlinkSync(arenaPath(engine.workers[0]!.arena))).toMatch(/^\/memfd:/);
  });
});

describe("what is refused", () => {
  test("a rank that is there already", async () => {
    const { socketPath } = await openSidecar();
    const engine = await FakeEngine.start(socketPath);
    const double = new ShimClient(socketPath);
    double.send(helloFrame({ engine: engine.id }));
    expect(await refusal(double)).toContain("its worker of rank 0 is connected already");
    engine.scheduler.send({ t: "ping", n: 1 });
    await engine.scheduler.wait("pong");
  });

  test("a second scheduler", async () => {
    const { socketPath } = await openSidecar();
    const engine = await FakeEngine.start(socketPath);
    const double = new ShimClient(socketPath);
    double.send(helloFrame({ engine: engine.id, role: "scheduler" }));
    expect(await refusal(double)).toContain("its scheduler is connected already");
  });

  test("another world size under the same id", async () => {
    const { socketPath } = await openSidecar();
    const engine = await FakeEngine.start(socketPath);
    const odd = new ShimClient(socketPath);
    odd.send(helloFrame({ engine: engine.id, world: 2, rank: 1 }));
    expect(await refusal(odd)).toContain(
      "world = 2, shards = 2, but another connection of it said 1, 1",
    );
  });

  test("ranks whose groups differ", async () => {
    const { socketPath } = await openSidecar();
    const [first, second] = [0, 1].map((rank) => new FakeWorker(socketPath, rank, []));
    first!.send(helloFrame({ world: 2 }));
    first!.send(register([makeGroup()]));
    await first!.wait("welcome");
    second!.send(helloFrame({ world: 2, rank: 1 }));
    second!.send(register([makeGroup({ tokens: 32 })]));
    expect(await refusal(second!)).toContain(
      "32 tokens (kv, tail 0) on one rank, 16 tokens (kv, tail 0) on another",
    );
  });

  test.each([
    ["a group twice", [makeGroup(), makeGroup()], "group 0: registered twice"],
    ["vectors outside the layer", [{ ...makeGroup(), layer_bytes: 64 }], "group 0: "],
  ])("%s", async (_name, groups, reason) => {
    const { socketPath } = await openSidecar();
    const worker = new FakeWorker(socketPath, 0, []);
    worker.send(helloFrame({}));
    worker.send(register(groups));
    expect(await refusal(worker)).toContain(reason);
  });

  test("blocks too large for the configured arena, with the key to raise", async () => {
    const { socketPath } = await openSidecar({ arenaBytes: 16 * MIB });
    const worker = new FakeWorker(socketPath, 0, []);
    worker.send(helloFrame({}));
    worker.send(register([makeGroup({ layers: 300 })]));
    const message = await refusal(worker);
    expect(message).toContain("[sidecar] arena_bytes = 16777216");
    expect(message).toContain("raise [sidecar] arena_bytes");
  });

  test("a kv_dim that is not the engine's head dim, naming both", async () => {
    const { socketPath } = await openSidecar({ kvDim: 128 });
    const worker = new FakeWorker(socketPath, 0, []);
    worker.send(helloFrame({}));
    worker.send(register([makeGroup({ dim: 32 })]));
    const message = await refusal(worker);
    expect(message).toContain("[turbo_quant] kv_dim = 128, but group 0 has head dim 32");
    expect(message).toContain("set kv_dim = 32");
  });

  test("a kv_dim that fits is taken", async () => {
    const { socketPath } = await openSidecar({ kvDim: 32 });
    await FakeEngine.start(socketPath);
  });
});

describe("going away", () => {
  test.each(["scheduler", "worker"])(
    "F20 when the %s goes, all of the engine goes",
    async (which) => {
      const { sidecar } = await openStack();
      const engine = await FakeEngine.start(sidecar.socketPath);
      const blocks = makeBlocks("chain", 4, PAGE);
      engine.save(blocks);
      await until(() => sidecar.counters.get("blocks_saved") === 4, "saves");
      await engine.done(engine.prefetch(hashesOf(blocks)));
      const [gone, left] =
        which === "worker"
          ? [engine.workers[0]!, engine.scheduler]
          : [engine.scheduler, engine.workers[0]!];
      gone.close();
      await left.ended();
      await until(() => sidecar.counters.get("engines_gone") === 1, "the engine to go");
      expect(sidecar.status().engines).toEqual([]);
      expect(sidecar.status().slots).toBe(0);
    },
  );

  test("a new life of the same engine gets a new arena and finds its blocks in the vault", async () => {
    const { sidecar } = await openStack();
    const first = await FakeEngine.start(sidecar.socketPath);
    const blocks = makeBlocks("chain", 4, PAGE);
    first.save(blocks);
    await until(() => sidecar.counters.get("blocks_saved") === 4, "saves");
    const oldArena = first.workers[0]!.arena;
    first.close();
    await first.scheduler.ended();
    const second = await FakeEngine.start(sidecar.socketPath);
    expect(second.workers[0]!.arena).not.toBe(oldArena);
    const view = await second.done(second.prefetch(hashesOf(blocks)));
    expect(view.reason).toBe("complete");
    expect(sidecar.counters.get("blocks_restored_vault")).toBe(4);
  });

  test("saves that were sent before the end still reach the vault", async () => {
    const { sidecar, kv } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const blocks = makeBlocks("chain", 12, PAGE);
    engine.save(blocks);
    engine.workers[0]!.end();
    engine.scheduler.close();
    await until(() => kv.counters.get("stored") === 12, "the last saves");
    await until(() => sidecar.counters.get("engines_gone") === 1, "the engine to go");
  });

  test("a retired arena is not written any more while its worker still has it mapped", async () => {
    const { sidecar } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const [worker] = engine.workers;
    const blocks = makeBlocks("chain", 4, PAGE);
    engine.save(blocks);
    await until(() => sidecar.counters.get("blocks_saved") === 4, "saves");
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    engine.scheduler.close();
    await worker!.ended();
    const again = await FakeEngine.start(sidecar.socketPath);
    again.save(makeBlocks("other", 12, PAGE));
    await until(() => sidecar.counters.get("blocks_saved") === 16, "saves of the new life");
    for (const [index, block] of blocks.entries()) {
      expect(engine.holds(view, index, block)).toBe(true);
    }
  });
});

describe("several", () => {
  test("two engines with one namespace use each other's blocks", async () => {
    const { sidecar } = await openStack();
    const [one, two] = await Promise.all(
      ["one", "two"].map((engine) => FakeEngine.start(sidecar.socketPath, { engine })),
    );
    expect(one!.workers[0]!.arena).not.toBe(two!.workers[0]!.arena);
    const blocks = makeBlocks("chain", 5, PAGE);
    one!.save(blocks);
    await until(() => sidecar.counters.get("blocks_saved") === 5, "saves");
    const view = await two!.done(two!.prefetch(hashesOf(blocks)));
    expect(view.reason).toBe("complete");
    expect(two!.holds(view, 4, blocks[4]!)).toBe(true);
  });

  test("F26 two namespaces never meet, in the vault or on the cache", async () => {
    const { sidecar } = await openStack();
    const namespaces = [Buffer.alloc(32, 1), Buffer.alloc(32, 2)];
    const [one, two] = await Promise.all(
      namespaces.map((namespace, index) =>
        FakeEngine.start(sidecar.socketPath, { engine: `engine-${index}`, namespace }),
      ),
    );
    const [mine, other] = [makeBlocks("chain", 3, PAGE), makeBlocks("chain", 3, PAGE)];
    // The same hashes with other bytes.
    for (const block of other) block.pages = [Buffer.alloc(PAGE, 9)];
    one!.save(mine);
    await until(() => sidecar.counters.get("blocks_saved") === 3, "saves of one");
    const missed = await two!.done(two!.prefetch(hashesOf(mine)));
    expect(missed.reason).toBe("end_of_hit");
    expect([...missed.held!]).toEqual([0]);
    two!.save(other);
    await until(() => sidecar.counters.get("blocks_saved") === 6, "saves of the other");
    const [seen, seenByOther] = await Promise.all([
      one!.done(one!.prefetch(hashesOf(mine))),
      two!.done(two!.prefetch(hashesOf(other))),
    ]);
    expect(one!.holds(seen, 2, mine[2]!)).toBe(true);
    expect(two!.holds(seenByOther, 2, other[2]!)).toBe(true);
    // An engine that changes its namespace finds no earlier block in its cache.
    one!.scheduler.send({ t: "namespace", namespace: Buffer.alloc(32, 3), model: "m", parts: {} });
    const view = await one!.done(one!.prefetch(hashesOf(mine)));
    expect(view.placed.size).toBe(0);
  });

  test("world = 2: each rank stores and gets its own shard", async () => {
    const { sidecar } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath, { world: 2 });
    const blocks = makeBlocks("chain", 6, PAGE, 2);
    engine.save(blocks);
    await until(() => sidecar.counters.get("blocks_saved") === 12, "saves of both ranks");
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(view.reason).toBe("complete");
    expect(view.placed.get(0)).toHaveLength(12);
    for (const [index, block] of blocks.entries()) {
      expect(engine.holds(view, index, block)).toBe(true);
    }
  });

  test("world = 4, shards = 2: ranks that hold the same pages store them once and all get them", async () => {
    const { sidecar } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath, { world: 4, shards: 2 });
    const blocks = makeBlocks("chain", 3, PAGE, 2);
    const [first, , third] = engine.workers;
    engine.saveOn(first!, blocks);
    engine.saveOn(third!, blocks);
    await until(() => sidecar.counters.get("blocks_saved") === 6, "saves of two ranks");
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(view.reason).toBe("complete");
    expect(view.placed.get(0)).toHaveLength(6);
    for (const [index, block] of blocks.entries()) {
      expect(engine.holds(view, index, block)).toBe(true);
    }
  });

  test("F28 world = 2: a block of which one shard is missing does not count", async () => {
    const { sidecar } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath, { world: 2 });
    const blocks = makeBlocks("chain", 3, PAGE, 2);
    engine.saveOn(engine.workers[0]!, blocks);
    engine.saveOn(engine.workers[1]!, blocks.slice(0, 2));
    await until(() => sidecar.counters.get("blocks_saved") === 5, "saves");
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect([...view.held!]).toEqual([0b011]);
    expect(view.reason).toBe("end_of_hit");
    expect(view.placed.get(0)).toHaveLength(4);
  });
});

describe("credits", () => {
  test("are granted again as saves are encoded, never more than the share", async () => {
    const { sidecar } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const [worker] = engine.workers;
    await until(() => worker!.credits.length >= SAVE_CREDITS_MIN, "credits");
    let most = 0;
    for (let round = 0; round < 20; round += 1) {
      await until(() => worker!.credits.length >= 4, "credits");
      most = Math.max(most, worker!.credits.length);
      engine.save(makeBlocks(`round ${round}`, 4, PAGE));
    }
    await until(() => sidecar.counters.get("blocks_saved") === 80, "80 saves");
    expect(most).toBeLessThanOrEqual(worker!.slotCount / 4);
  });

  test("handed back unused come again, later", async () => {
    const { sidecar } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const [worker] = engine.workers;
    const [[slot, generation]] = worker!.credits as [[number, number]];
    const slots = Buffer.alloc(8);
    slots.writeUInt32LE(slot, 0);
    slots.writeUInt32LE(generation, 4);
    const before = worker!.got("credits").length;
    worker!.send({ t: "return", arena: worker!.arena, slots });
    const startMs = performance.now();
    await until(() => worker!.got("credits").length > before, "the credit to come again");
    expect(performance.now() - startMs).toBeGreaterThan(500);
    worker!.send({ t: "return", arena: worker!.arena, slots });
    await until(() => sidecar.counters.get("dropped_bad_slot") === 1, "the stale one to be seen");
  });
});
