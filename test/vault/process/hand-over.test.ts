// Owns the proof of what a vault gives to its pool before its memory goes to the machine's user: what is hot, where sidecars look for it.
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import type * as Limits from "../../../src/base/limits/user.ts";
import { PoolKey } from "../../../src/discovery/entry.ts";
import { Gossip } from "../../../src/discovery/gossip.ts";
import { HandingOver } from "../../../src/vault/process/hand-over.ts";
import type { PausableVault } from "../../../src/vault/server.ts";
import { YieldingVault } from "../../../src/vault/yielding.ts";
import type { HandOver } from "../../../src/vault/yielding.ts";
import { openClosedVault, shown, TOKENS } from "../../support/closed-vaults.ts";
import type { ClosedVault } from "../../support/closed-vaults.ts";
import { TestClient } from "../../support/record-client.ts";
import { keysOf, makeRecords, NAMESPACE } from "../../support/records.ts";
import { saveAll } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import type { Block } from "../../support/shim-client.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";
import {
  closeAfterTest,
  logger,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../../support/vaults.ts";
import type { TestVault } from "../../support/vaults.ts";

// A vault that a busy machine keeps from answering in time would be given nothing.
vi.mock("../../../src/base/limits/user.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  YIELD_HELLO_MS: 20_000,
}));

const BLOCKS = 96;
const LONG = { maxModelLen: 16 * BLOCKS };
const ALWAYS = { when: "always", waitMs: 20_000 } as const;

interface Pooled {
  vault: TestVault;
  isUp: boolean;
  gossip: Gossip;
}

/** Vaults that know each other. */
async function openPool(count: number): Promise<Pooled[]> {
  const key = new PoolKey(randomBytes(32));
  const all: Pooled[] = [];
  for (let at = 0; at < count; at += 1) {
    const peers = all.slice(0, 1).map(({ vault }) => vault.address);
    const file = join(testDirectory(), "pool.json");
    const given = { key, peers, file, certificate: null, logger, onRefused: () => {} };
    const gossip = new Gossip(given);
    all.push({ vault: await openVault({ gossip }), isUp: true, gossip });
  }
  const isWhole = (): boolean => all.every(({ gossip }) => gossip.others.length === count - 1);
  await until(isWhole, "all to know each other");
  return all;
}

/** An engine of another machine, whose sidecar sees the pool for the first time. */
async function engineOf(pool: readonly Pooled[]): Promise<{
  save(blocks: readonly Block[]): Promise<void>;
  read(blocks: readonly Block[]): Promise<number>;
}> {
  const kv = pool.map(({ vault }) => openClient(vault));
  for (const [at, client] of kv.entries()) {
    const known = async (): Promise<boolean> => {
      await client.hello(SOON_MS).catch(() => {});
      return client.isDown || pool[at]!.isUp;
    };
    await until(known, "what is down to be known as down");
  }
  const sidecar = await openSidecar({ vaults: { kv, ssm: null }, ...ALWAYS });
  const engine = await FakeEngine.start(sidecar.socketPath, LONG);
  return {
    save: (blocks) => saveAll({ sidecar, engine }, blocks),
    async read(blocks) {
      const view = await engine.done(engine.prefetch(hashesOf(blocks)));
      const placed = view.placed.get(0)?.length ?? 0;
      expect(blocks.slice(0, placed).every((block, at) => engine.holds(view, at, block))).toBe(
        true,
      );
      engine.release(view.plan);
      return placed;
    },
  };
}

/** Somebody who uses the machine from the moment that the test says. */
function yields(
  { vault }: { vault: PausableVault },
  handOver: HandOver,
): { isThere: boolean; vault: YieldingVault } {
  const user = { isThere: false, name: "test", close: (): void => {} };
  const idleMs = (): number => (user.isThere ? 0 : Infinity);
  const giving = new YieldingVault({
    vault,
    open: () => Promise.reject(new Error("is not to be opened")),
    user: { ...user, idleMs },
    awayMs: 1000,
    graceMs: 0,
    logger,
    handOver,
  });
  return Object.assign(user, { vault: closeAfterTest(giving) });
}

const handingOver = ({ gossip }: Pick<Pooled, "gossip">): HandingOver =>
  closeAfterTest(
    new HandingOver({ redundancy: "none", recordClass: "kv", gossip: () => gossip, logger }),
  );

test("F89 before its memory goes, a vault gives the others what was read, and nothing else", async () => {
  const pool = await openPool(3);
  const first = await engineOf(pool);
  const [hot, cold] = [makeBlocks("hot", BLOCKS, 8192), makeBlocks("cold", BLOCKS, 8192)];
  await first.save(hot);
  await first.save(cold);
  const reader = await engineOf(pool);
  expect(await reader.read(hot)).toBe(BLOCKS);
  const [, , leaving] = pool;
  const own = leaving!.vault.stats().records;
  expect(own).toBeGreaterThan(BLOCKS / 4);

  const user = yields(leaving!, handingOver(leaving!));
  user.isThere = true;
  await until(() => user.vault.state === "released", "the memory to be given back");
  leaving!.isUp = false;
  const next = await engineOf(pool);
  expect(await next.read(hot)).toBe(BLOCKS);
  expect(await next.read(cold)).toBeLessThan(BLOCKS);
});

test("F89 what was flushed while the vault was silent is given to nobody", async () => {
  const pool = await openPool(2);
  const [staying, leaving] = pool;
  const first = await engineOf(pool);
  const blocks = makeBlocks("flushed", BLOCKS, 8192);
  await first.save(blocks);
  expect(await (await engineOf(pool)).read(blocks)).toBe(BLOCKS);
  const real = handingOver(leaving!);
  const user = yields(leaving!, {
    prepare: () => real.prepare(),
    run: async (vault, signal) => {
      await openClient(staying!.vault).flush(null, SOON_MS);
      await real.run(vault, signal);
    },
    close: () => real.close(),
  });
  user.isThere = true;
  await until(() => user.vault.state === "released", "the memory to be given back");
  expect(staying!.vault.stats().records).toBe(0);
});

test("F89 who leaves before all is given has the vault back as it was", async () => {
  const pool = await openPool(2);
  const [, leaving] = pool;
  let isGiving = false;
  const user = yields(leaving!, {
    prepare: () => Promise.resolve(),
    run: (_vault, signal) => {
      isGiving = true;
      return new Promise((resolve) => signal.addEventListener("abort", () => resolve()));
    },
    close: () => {},
  });
  const client = openClient(leaving!.vault);
  const engine = await engineOf(pool);
  await engine.save(makeBlocks("kept", BLOCKS, 8192));
  const { records } = leaving!.vault.stats();
  user.isThere = true;
  await until(() => isGiving, "it to give");
  user.isThere = false;
  await until(() => user.vault.state === "serving", "it to serve");
  expect((await client.stats(SOON_MS)).records).toBe(records);
});

test("F89 vaults with certificates give by the pool's token, before any machine has joined", async () => {
  const key = new PoolKey(randomBytes(32));
  const all: { vault: ClosedVault; gossip: Gossip }[] = [];
  for (const peers of [[], [0]]) {
    let gossip: Gossip | null = null;
    const vault = await openClosedVault({}, {}, (certificate) => {
      const file = join(testDirectory(), "pool.json");
      const asked = peers.map((at) => all[at]!.vault.address);
      const given = { key, peers: asked, file, certificate, logger, onRefused: () => {} };
      return (gossip = new Gossip(given));
    });
    all.push({ vault, gossip: gossip! });
  }
  await until(
    () => all.every(({ gossip }) => gossip.others.length === 1),
    "both to know the other",
  );
  const [leaving, staying] = all;
  const security = shown(leaving!.vault, TOKENS.write);
  const { address } = leaving!.vault;
  const client = closeAfterTest(new TestClient({ address, name: "kv", logger, security }));
  const records = makeRecords(40, { payloadBytes: 1000 });
  await client.put(NAMESPACE, records, SOON_MS);
  await client.take(NAMESPACE, keysOf(records), SOON_MS);

  const user = yields(leaving!, handingOver(leaving!));
  user.isThere = true;
  await until(() => user.vault.state === "released", "the memory to be given back");
  expect(staying!.vault.stats().records).toBe(40);
});
