// Owns the proof that an impossible save is dropped at once with its reason, and its slot returns.
import { describe, expect, test } from "vitest";
import { toNamespace } from "../../../src/base/block.ts";
import { blockKey } from "../../../src/base/key-text.ts";
import {
  SAVE_AHEAD_SHARE,
  SAVE_QUEUE_BYTES_MAX,
  STORE_TIMEOUT_MS,
} from "../../../src/base/limits/general.ts";
import { newSidecarCounters } from "../../../src/base/metrics.ts";
import type { SidecarCounters } from "../../../src/base/metrics.ts";
import type { EncodePool } from "../../../src/codec/pool.ts";
import { Saver } from "../../../src/sidecar/save/save.ts";
import type { StoreQueue } from "../../../src/sidecar/save/store-queue.ts";
import type { SaveItem } from "../../../src/sidecar/socket/messages.ts";
import { BlockOutcomes } from "../../../src/sidecar/trace/block-outcomes.ts";
import { openPools } from "../../../src/sidecar/vaults/pools.ts";
import { Quarantine } from "../../../src/sidecar/vaults/quarantine.ts";
import { openClosedVault, shown, TOKENS } from "../../support/closed-vaults.ts";
import { RAW_BLOCKS } from "../../support/copies.ts";
import { startFaultProxy } from "../../support/fault-proxy.js";
import { digest } from "../../support/records.ts";
import { saveSource } from "../../support/save-source.ts";
import { FakeEngine, makeBlocks, makeGroup } from "../../support/shim-client.ts";
import { openSidecar, openStack } from "../../support/sidecars.ts";
import type { TestSidecar } from "../../support/sidecars.ts";
import {
  closeAfterTest,
  logger,
  MIB,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../../support/vaults.ts";

const PAGE = 8192;

async function dropped(sidecar: TestSidecar, reason: string, count: number): Promise<void> {
  await until(() => sidecar.counters.get(`dropped_${reason}`) === count, `${count} x ${reason}`);
}

/** Expects all credits back at the worker, so that no slot is stuck in a save. */
async function expectCreditsBack(sidecar: TestSidecar, engine: FakeEngine): Promise<void> {
  const [worker] = engine.workers;
  await until(() => sidecar.status().saves.queuedBlocks === 0, "saves to end");
  await until(
    () => sidecar.status().engines[0]!.arena!.leasedSlots === worker!.credits.length,
    "all leases to be credits",
  );
}

describe("drops", () => {
  test("no vault of that class", async () => {
    const sidecar = await openSidecar();
    const engine = await FakeEngine.start(sidecar.socketPath);
    engine.save(makeBlocks("a", 3, PAGE));
    await dropped(sidecar, "no_vault", 3);
    await expectCreditsBack(sidecar, engine);
  });

  test("no namespace yet", async () => {
    const { sidecar } = await openStack();
    const engine = new FakeEngine(sidecar.socketPath, { namespace: null });
    await engine.ready();
    engine.save(makeBlocks("a", 3, PAGE));
    await dropped(sidecar, "no_namespace", 3);
    await expectCreditsBack(sidecar, engine);
  });

  test("a vault that this machine's token only reads: without encoding, once it has said so", async () => {
    const vault = await openClosedVault();
    const client = openClient(vault, "kv", { security: shown(vault, TOKENS.read) });
    const sidecar = await openSidecar({ vaults: { kv: client, ssm: null } });
    const engine = await FakeEngine.start(sidecar.socketPath);
    await client.hello(SOON_MS);
    engine.save(makeBlocks("a", 3, PAGE));
    await dropped(sidecar, "read_only", 3);
    expect([sidecar.counters.get("store_busy_us"), vault.counter("stores")]).toEqual([0, 0]);
    await expectCreditsBack(sidecar, engine);
  });

  test("a vault that is down: without encoding, and again once it is back", async () => {
    const vault = await openVault();
    const proxy = closeAfterTest(await startFaultProxy({ target: vault.address }));
    const client = openClient(proxy);
    const sidecar = await openSidecar({ vaults: { kv: client, ssm: null } });
    const engine = await FakeEngine.start(sidecar.socketPath);
    await proxy.close();
    engine.save(makeBlocks("a", 2, PAGE));
    await dropped(sidecar, "vault_down", 2);
    await client.hello(500).catch(() => {});
    await client.hello(500).catch(() => {});
    expect(client.state).toBe("down");
    engine.save(makeBlocks("b", 2, PAGE));
    await dropped(sidecar, "vault_down", 4);
    await expectCreditsBack(sidecar, engine);
    const listen = proxy.address;
    closeAfterTest(await startFaultProxy({ target: vault.address, listen }));
    await until(() => client.state === "up", "the vault to be seen again");
    engine.save(makeBlocks("c", 2, PAGE));
    await until(() => vault.counters.get("stored") === 2, "saves to flow again");
  });

  test("a slot that is not the worker's, is stale, or is sent twice", async () => {
    const { sidecar, kv } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const [worker] = engine.workers;
    const [slot, generation] = worker!.credits[0]!;
    const [block] = makeBlocks("a", 1, PAGE);
    const item = (at: number, of: number): unknown[] => [at, of, 0, block!.hash, block!.parent, 16];
    worker!.send({
      t: "save",
      arena: worker!.arena,
      namespace: engine.namespace,
      items: [item(slot, generation + 1), item(999_999, 1), item(slot, generation)],
    });
    const again = { t: "save", arena: worker!.arena, namespace: engine.namespace };
    worker!.send({ ...again, items: [item(slot, generation)] });
    await dropped(sidecar, "bad_slot", 3);
    await until(() => kv.counters.get("stored") === 1, "the good one");
  });

  test("an arena of another life", async () => {
    const { sidecar } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const [worker] = engine.workers;
    const [block] = makeBlocks("a", 1, PAGE);
    const items = [[1, 1, 0, block!.hash, block!.parent, 16]];
    const arena = (worker!.arena + 1) % 2 ** 32;
    worker!.send({ t: "save", arena, namespace: engine.namespace, items });
    await dropped(sidecar, "stale_arena", 1);
  });

  test("blocks of weights that the engine has no more; its slots come back", async () => {
    const { sidecar, kv } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const namespace = digest("the next generation");
    engine.scheduler.send({ t: "namespace", namespace, model: "test/model", parts: {} });
    const named = (): boolean =>
      sidecar.status().engines[0]!.namespace === namespace.toString("hex").slice(0, 16);
    await until(named, "the new name");
    engine.save(makeBlocks("a", 3, PAGE));
    await dropped(sidecar, "old_weights", 3);
    await expectCreditsBack(sidecar, engine);
    expect(kv.counters.get("stored")).toBe(0);
  });

  test("a group nobody registered", async () => {
    const { sidecar } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    engine.save(makeBlocks("a", 1, PAGE), 5);
    await dropped(sidecar, "unknown_group", 1);
    await expectCreditsBack(sidecar, engine);
  });

  test("the same block twice at the same time is stored once", async () => {
    const { sidecar, kv } = await openStack();
    const one = await FakeEngine.start(sidecar.socketPath);
    const blocks = makeBlocks("a", 4, PAGE);
    one.save([...blocks, ...blocks]);
    await dropped(sidecar, "duplicate", 4);
    await until(() => kv.counters.get("stored") === 4, "one of each");
    expect(kv.counters.get("offered")).toBe(4);
    await expectCreditsBack(sidecar, one);
  });

  test("a record the vault has no room for is counted by the vault's own reason", async () => {
    const vault = await openVault({ maxBytes: 1024 * 1024 });
    const vaults = { kv: openClient(vault), ssm: null };
    const sidecar = await openSidecar({ vaults, arenaBytes: 128 * MIB });
    const groups = [makeGroup({ layers: 300 })];
    const engine = await FakeEngine.start(sidecar.socketPath, { groups, maxModelLen: 16 });
    engine.save(makeBlocks("big", 1, 300 * 4096));
    await dropped(sidecar, "too_large", 1);
    await expectCreditsBack(sidecar, engine);
  });

  test("F32 more bytes than may wait at once", () => takesOfSix(0, 4));

  test("no block that there was a slot for", () => takesOfSix(1, 6));

  test("a block that cannot be encoded, or is left when its engine goes: why is kept", async () => {
    const { saver, outcomes } = closedSaver(() => Promise.reject(new Error("no codec")));
    const source = saveSource(16, [], true);
    saver.room.addArena(16 / SAVE_AHEAD_SHARE);
    const asked = { class: "kv", tenant: 0 } as const;
    const items = itemsOf(2);
    const reasonOf = (at: number): string =>
      outcomes.missReason(NAMELESS, asked, blockKey(NAMELESS, 0, items[at]!.hash));
    saver.accept(source, NAMELESS, items.slice(0, 1));
    await until(() => reasonOf(0) === "dropped_encode_failed", "the first one's reason");
    const hung = closedSaver(() => new Promise(() => {}));
    const large = saveSource(SAVE_QUEUE_BYTES_MAX / 4, []);
    hung.saver.accept(large, NAMELESS, items);
    await hung.saver.settle(large);
    const key = blockKey(NAMELESS, 0, items[1]!.hash);
    expect(hung.outcomes.missReason(NAMELESS, asked, key)).toBe("dropped_shutdown");
  });

  const NAMELESS = toNamespace(Buffer.alloc(32));

  function itemsOf(count: number): SaveItem[] {
    return makeBlocks("a", count, 16).map(({ hash, parent, endTokens }, slot) => {
      return { slot, generation: 1, group: 0, hash, parent, endTokens, tenant: 0, anchor: hash };
    });
  }

  /** Makes a saver whose only vault takes nothing. */
  function closedSaver(encode: () => Promise<unknown>): {
    saver: Saver;
    counters: SidecarCounters;
    outcomes: BlockOutcomes;
  } {
    const counters = newSidecarCounters();
    const pool = { encode } as unknown as EncodePool;
    const nothingWaits = (): boolean => false;
    const store = {
      refusal: null,
      whenRoom: () => {},
      add: () => {},
      shedCopy: nothingWaits,
      shedDeeperThan: nothingWaits,
    } as unknown as StoreQueue;
    const stores = { kv: [store], ssm: [] };
    const pools = openPools({ kv: [], ssm: [] });
    const codecs = RAW_BLOCKS;
    const outcomes = new BlockOutcomes();
    const quarantine = new Quarantine();
    const saver = new Saver({
      pool,
      pools,
      stores,
      codecs,
      outcomes,
      quarantine,
      counters,
      logger,
    });
    return { saver, counters, outcomes };
  }

  /** Saves six blocks of a quarter of the queue each, with slots for that share of the queue. */
  function takesOfSix(slotShare: number, taken: number): void {
    const finished: number[] = [];
    const source = saveSource(SAVE_QUEUE_BYTES_MAX / 4, finished);
    // Never finishes encoding, so that all accepted saves stay in the queue.
    const { saver, counters } = closedSaver(() => new Promise(() => {}));
    saver.room.add(slotShare * SAVE_QUEUE_BYTES_MAX);
    saver.accept(source, NAMELESS, itemsOf(6));
    expect(counters.get("dropped_queue_full")).toBe(6 - taken);
    expect(finished).toEqual([4, 5].slice(taken - 4));
    expect(saver.queuedBytes).toBe((taken / 4) * SAVE_QUEUE_BYTES_MAX);
    saver.room.add(-slotShare * SAVE_QUEUE_BYTES_MAX);
    expect(saver.room.bytesMax).toBe(SAVE_QUEUE_BYTES_MAX);
  }
});

describe("a stopping sidecar", () => {
  test("finishes the saves it has taken", async () => {
    const { sidecar, kv } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    engine.save(makeBlocks("last", 12, PAGE));
    const isTaken = (): boolean =>
      sidecar.status().saves.queuedBlocks > 0 || sidecar.counters.get("blocks_saved") > 0;
    await until(isTaken, "saves to be taken");
    await sidecar.close();
    expect(kv.counters.get("stored")).toBe(12);
  });

  test("does not wait longer than its limit for a vault that hangs", async () => {
    const vault = await openVault();
    const proxy = closeAfterTest(await startFaultProxy({ target: vault.address }));
    const sidecar = await openSidecar({ vaults: { kv: openClient(proxy), ssm: null } });
    const engine = await FakeEngine.start(sidecar.socketPath);
    proxy.set({ direction: "store", hangAt: 1 });
    engine.save(makeBlocks("stuck", 4, PAGE));
    await until(() => proxy.counts().hung === 1, "the hang");
    const startMs = performance.now();
    await sidecar.close();
    expect(performance.now() - startMs).toBeLessThan(STORE_TIMEOUT_MS - 500);
  });
});
