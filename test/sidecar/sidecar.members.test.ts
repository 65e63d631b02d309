// Owns the proof that a pool follows a DNS name without a restart: new vaults get a share, records of leaving ones move.
import { expect, test, vi } from "vitest";
import { hasBit, packKeys } from "../../src/base/block.ts";
import { armFailpoints } from "../../src/base/failpoint.ts";
import type * as Again from "../../src/base/limits/again.ts";
import type * as Limits from "../../src/base/limits/pool.ts";
import { addressesOf } from "../../src/discovery/dns.ts";
import { PolledSource } from "../../src/discovery/polled.ts";
import type { MemberSource } from "../../src/sidecar/vaults/pool-members.ts";
import { startDnsServer } from "../support/dns-server.ts";
import { digest } from "../support/records.ts";
import { expectNoLeak, saveAll } from "../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import type { Block } from "../support/shim-client.ts";
import { openSidecar } from "../support/sidecars.ts";
import type { TestSidecar } from "../support/sidecars.ts";
import { startVaultProcess } from "../support/vault-process.ts";
import type { Place } from "../support/vault-process.ts";
import { closeAfterTest, logger, openClient, SOON_MS, until } from "../support/vaults.ts";

const { kept } = vi.hoisted(() => ({ kept: { ms: 3_600_000 } }));
vi.mock("../../src/base/limits/pool.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  MEMBERS_EVERY_MS: 50,
  get VIEW_KEPT_MS() {
    return kept.ms;
  },
}));
vi.mock("../../src/base/limits/again.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Again>()),
  AGAIN_PAUSE_MS: 60,
  AGAIN_ASK_MS: 100,
}));

const PAGE = 8192;
const BLOCKS = 197;
const LONG = { maxModelLen: 16 * BLOCKS };
const NAME = "vaults.example";

/** Makes a source for attention KV. */
function polled(ask: () => Promise<string[]>): MemberSource {
  const source = new PolledSource("dns", ask, logger);
  return {
    follow(onList) {
      source.follow((list) => onList("kv", new Map(list.map(({ address }) => [address, "dns"]))));
    },
    connect: (name, at) => openClient({ address: at }, name),
    close: () => source.close(),
  };
}

/** Returns the shares by the last number of a vault's address. */
const sharesOf = (sidecar: TestSidecar): Record<string, number> =>
  Object.fromEntries(
    sidecar.status().vaults.kv.map(({ address, share }) => [address.split(/[.:]/)[3]!, share]),
  );

/** Returns whether each block is on one of these vaults; record counts do not tell, because some blocks are on two. */
async function isHeldBy(vaults: readonly Place[], blocks: readonly Block[]): Promise<boolean> {
  const keys = packKeys(hashesOf(blocks), 0, 0);
  const held = await Promise.all(
    vaults.map(async (vault) => {
      const client = openClient(vault);
      await client.hello(SOON_MS);
      const found = await client.lookup(digest("namespace of the test"), keys, SOON_MS);
      client.close();
      return found;
    }),
  );
  return blocks.every((_block, at) => held.some((found) => hasBit(found, at)));
}

/** Uses a fresh engine, so that all blocks must come from vaults. */
async function expectAllFound(
  sidecar: TestSidecar,
  name: string,
  blocks: readonly Block[],
): Promise<FakeEngine> {
  const engine = await FakeEngine.start(sidecar.socketPath, { ...LONG, engine: name });
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect([name, view.reason, view.placed.get(0)?.length]).toEqual([name, "complete", BLOCKS]);
  expect(blocks.filter((block, at) => !engine.holds(view, at, block))).toEqual([]);
  engine.release(view.plan);
  return engine;
}

test("F35 the vaults of a name come and go: nothing that is held is missed, and it moves to its new owners", async () => {
  const { names, resolver, asked, close } = await startDnsServer();
  const vaults: Place[] = [await startVaultProcess()];
  const [{ port }] = vaults as [Place];
  for (const host of ["127.0.0.2", "127.0.0.3"]) vaults.push(await startVaultProcess(port, host));
  const records = async (at: number): Promise<number> => {
    const client = openClient(vaults[at]!);
    const stats = await client.stats(SOON_MS);
    client.close();
    return stats.records;
  };
  names.set(NAME, ["127.0.0.1", "127.0.0.2"]);
  const address = { host: NAME, port, text: `dns:${NAME}:${port}` };
  const members = polled(() => addressesOf(address, resolver));
  const sidecar = await openSidecar({ when: "always", waitMs: 30_000, members });
  await until(() => sharesOf(sidecar)["2"]! > 0, "the vaults of the name");
  const engine = await FakeEngine.start(sidecar.socketPath, LONG);
  const isGreeted = (): boolean => sidecar.status().vaults.kv.every(({ state }) => state === "up");
  await until(isGreeted, "their greeting");
  const blocks = makeBlocks("named", BLOCKS, PAGE);
  await saveAll({ engine, sidecar }, blocks);
  expect((await records(0)) + (await records(1))).toBe(BLOCKS);

  // A new vault owns a third, and holds nothing yet.
  names.set(NAME, ["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
  await until(() => sharesOf(sidecar)["3"]! > 0.2, "the one that came");
  const reader = await expectAllFound(sidecar, "after one came", blocks);
  await until(async () => (await records(2)) >= 32, "what it owns now to come to it");

  // A leaving vault owns nothing, is still asked, and its records move to the others.
  names.set(NAME, ["127.0.0.2", "127.0.0.3"]);
  await until(() => sharesOf(sidecar)["1"] === 0, "the one that left");
  await expectAllFound(sidecar, "after one left", blocks);
  await until(() => isHeldBy(vaults.slice(1), blocks), "what it held to move");
  process.kill(vaults[0]!.pid, "SIGKILL");
  await expectAllFound(sidecar, "after it is gone", blocks);

  // A name without an answer changes nothing.
  close();
  const before = asked();
  await new Promise((resolve) => {
    setTimeout(resolve, 700);
  });
  expect(asked()).toBe(before);
  const shares = sharesOf(sidecar);
  expect([shares["1"], shares["2"]! + shares["3"]!]).toEqual([0, 1]);
  await expectNoLeak({ engine: reader, sidecar });
});

/** Opens a pool of two vaults that follows `list`, with blocks on both. */
async function following(label: string): Promise<{
  sidecar: TestSidecar;
  engine: FakeEngine;
  vaults: Place[];
  list: string[];
  blocks: Block[];
}> {
  const vaults = [await startVaultProcess(), await startVaultProcess()];
  const list = vaults.map(({ address }) => address);
  const members = polled(() => Promise.resolve([...list]));
  const sidecar = await openSidecar({ when: "always", waitMs: 30_000, members });
  const isWhole = (): boolean =>
    sidecar.status().vaults.kv.filter(({ state }) => state === "up").length === 2;
  const engine = await FakeEngine.start(sidecar.socketPath, LONG);
  await until(isWhole, "the vaults");
  const blocks = makeBlocks(label, BLOCKS, PAGE);
  await saveAll({ engine, sidecar }, blocks);
  return { sidecar, engine, vaults, list, blocks };
}

test("F101 the list changes between look-up and fetch: one comes, one leaves, and the restore is whole", async () => {
  const { sidecar, engine, list, blocks } = await following("between");
  const arm = (action: string): void =>
    armFailpoints({ text: `sidecar.fetch.begun=${action}`, isOnNetwork: false, logger });
  closeAfterTest({ close: () => arm("off") });
  const { address: comes } = await startVaultProcess();
  arm("sleep(2000)");
  const reader = await FakeEngine.start(sidecar.socketPath, { ...LONG, engine: "between" });
  const before = sidecar.counters.get("lookup_hits");
  const plan = reader.prefetch(hashesOf(blocks));
  await until(() => sidecar.counters.get("lookup_hits") === before + BLOCKS, "the look-up");
  const gone = list.shift()!;
  list.push(comes);
  const shareOf = (of: string): number | undefined =>
    sidecar.status().vaults.kv.find(({ address }) => address === of)?.share;
  await until(() => shareOf(gone) === 0 && shareOf(comes)! > 0, "the list that was changed");
  expect(reader.view(plan).placed.size).toBe(0);
  arm("off");
  const view = await reader.done(plan);
  expect([view.reason, view.placed.get(0)?.length]).toEqual(["complete", BLOCKS]);
  expect(blocks.filter((block, at) => !reader.holds(view, at, block))).toEqual([]);
  reader.release(view.plan);
  await expectNoLeak({ engine, sidecar });
});

test("a flush reaches the records of a vault that has left: it is asked no more", async () => {
  const { sidecar, engine, vaults, list } = await following("left");
  // Twelve prompts, so that some begin on each vault.
  const prompts = Array.from({ length: 12 }, (_none, at) => makeBlocks(`left-${at}`, 2, PAGE));
  for (const blocks of prompts) await saveAll({ engine, sidecar }, blocks);
  const gone = list.pop()!;
  const shareOf = (address: string): number =>
    sidecar.status().vaults.kv.find((vault) => vault.address === address)!.share;
  await until(() => shareOf(gone) === 0, "the one that left");
  const found = async (name: string): Promise<number> => {
    const reader = await FakeEngine.start(sidecar.socketPath, { ...LONG, engine: name });
    let count = 0;
    for (const blocks of prompts) {
      const view = await reader.done(reader.prefetch(hashesOf(blocks)));
      count += view.placed.get(0)?.length ?? 0;
      reader.release(view.plan);
    }
    return count;
  };
  expect(await found("before")).toBe(24);
  const { sidecars } = await openClient(vaults[0]!).flush(null, SOON_MS);
  expect(sidecars.map(({ confirmed }) => confirmed)).toEqual([true]);
  expect(await found("after")).toBe(0);
});

test("a vault that comes back after it was asked no more is one of the pool again", async () => {
  const { sidecar, list, blocks } = await following("back");
  const away = list.pop()!;
  const seen = () => sidecar.status().vaults.kv.find(({ address }) => address === away)!;
  kept.ms = 0;
  await until(() => seen().share === 0, "the one that left");
  // Waits one more poll, at which it is forgotten.
  await new Promise((resolve) => {
    setTimeout(resolve, 300);
  });
  list.push(away);
  await until(() => seen().share > 0, "its return");
  await until(() => seen().state === "up", "its greeting");
  await expectAllFound(sidecar, "again", blocks);
});
