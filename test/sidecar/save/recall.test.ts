// Owns the proof that a lossy block is stored again with the bytes it came with, where another vault still has its record.
import { expect, test, vi } from "vitest";
import { packKeys } from "../../../src/base/block.ts";
import type * as Again from "../../../src/base/limits/again.ts";
import type { OutboxRecord } from "../../../src/codec/record.ts";
import { codecId, LOSSY } from "../../../src/sidecar/save/codecs.ts";
import { completed, recallAll } from "../../../src/sidecar/save/recall.ts";
import { rawRecords } from "../../support/raw-calls.ts";
import type { TestClient } from "../../support/record-client.ts";
import { digest } from "../../support/records.ts";
import { saveAll } from "../../support/scene.ts";
import type { Saving } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import type { Block } from "../../support/shim-client.ts";
import { openSidecar } from "../../support/sidecars.ts";
import { openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";
import type { TestVault } from "../../support/vaults.ts";

const again = vi.hoisted(() => ({ pauseMs: 60 }));
vi.mock("../../../src/base/limits/again.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Again>()),
  get AGAIN_PAUSE_MS() {
    return again.pauseMs;
  },
  AGAIN_ASK_MS: 100,
}));

const PAGE = 8192;
const COUNT = 12;

interface Pair extends Saving {
  vaults: TestVault[];
  clients: TestClient[];
  blocks: Block[];
  /** Pages as they were restored. */
  restored: Buffer[];
  /** Records of the second vault before it was emptied. */
  before: Buffer[];
}

/** Saves lossy blocks to two vaults, restores them, and empties the second vault. */
async function openPair(name: string): Promise<Pair> {
  const vaults = [await openVault(), await openVault()];
  const clients = vaults.map((vault) => openClient(vault));
  const kept = { kv: LOSSY.name, redundancy: "copies:2" } as const;
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...kept });
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  const engine = await FakeEngine.start(sidecar.socketPath, { namespace: digest(name) });
  const blocks = makeBlocks(name, COUNT, PAGE);
  // No inf and no NaN, because such blocks are stored raw.
  for (const page of blocks.flatMap(({ pages }) => pages)) {
    for (let at = 1; at < page.length; at += 2) page[at]! &= 0xbf;
  }
  await saveAll({ engine, sidecar }, blocks);
  const isOnBoth = (): boolean => vaults.every((vault) => vault.stats().records === COUNT);
  await until(isOnBoth, "both copies");
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  const restored = view.placed.get(0)!.map((slot) => engine.workers[0]!.readSlot(slot, PAGE));
  engine.release(view.plan);
  const pair = { sidecar, engine, vaults, clients, blocks, restored };
  const before = await recordsOf(pair);
  expect(new Set(before.map((record) => record[8]))).toEqual(new Set([codecId(LOSSY.name)]));
  const port = Number(vaults[1]!.address.split(":").at(-1));
  await vaults[1]!.close();
  vaults[1] = await openVault({ port });
  return { ...pair, before };
}

async function recordsOf({
  clients,
  engine,
  blocks,
}: Pick<Pair, "clients" | "engine" | "blocks">): Promise<Buffer[]> {
  const came = await rawRecords(clients[1]!, engine.namespace, packKeys(hashesOf(blocks), 0, 0));
  return blocks.map((_, index) => came.get(index) ?? Buffer.alloc(0));
}

async function expectSameBytes(pair: Pair): Promise<void> {
  const after = await recordsOf(pair);
  expect(after.map((record, at) => record.equals(pair.before[at]!))).toEqual(
    pair.blocks.map(() => true),
  );
}

test("a vault that came back empty gets the records that the other copy has, bytes unchanged", async () => {
  again.pauseMs = 60;
  const pair = await openPair("offered");
  await until(() => pair.vaults[1]!.stats().records === COUNT, "all copies");
  await expectSameBytes(pair);
  expect(pair.sidecar.counters.get("copies_recalled")).toBe(COUNT);
});

test("an engine that saves again what it restored stores the record that the other copy has", async () => {
  again.pauseMs = 600_000;
  const pair = await openPair("saved");
  const { engine, sidecar, clients, blocks, restored, vaults } = pair;
  expect(restored.some((page, at) => page.equals(blocks[at]!.pages[0]!))).toBe(false);
  await clients[1]!.hello(SOON_MS);
  engine.save(blocks.map((block, at) => ({ ...block, pages: [restored[at]!] })));
  await until(() => vaults[1]!.stats().records === COUNT, "all to be stored again");
  await expectSameBytes(pair);
  expect(sidecar.counters.get("copies_recalled")).toBe(COUNT);
});

const NAMESPACE = digest("n") as Parameters<typeof recallAll>[0][number]["namespace"];
const key = (n: number): Buffer => Buffer.alloc(36, n);

function recordOf(name: string): OutboxRecord & { name: string; drops: number } {
  const record = { name, drops: 0, drop: () => void (record.drops += 1) };
  return record as unknown as OutboxRecord & { name: string; drops: number };
}

test("each record comes from the first of its vaults that has it, and what none has is made", async () => {
  const asked: string[] = [];
  const vault = (name: string, has: readonly number[]) => ({
    recall: (_: unknown, keys: readonly Buffer[]) => {
      asked.push(`${name} ${keys.map(([n]) => n).join("")}`);
      return Promise.resolve(
        keys.map(([n]) => (has.includes(n!) ? recordOf(`${name}${n}`) : null)),
      );
    },
  });
  const [near, far] = [vault("near", [2]), vault("far", [1, 2])];
  const of = { namespace: NAMESPACE, tenant: 0 };
  const wanted = [1, 2, 3].map((n) => ({ ...of, key: key(n), stores: [near, far] }));
  const found = await recallAll([...wanted, { ...of, key: key(4), stores: [] }]);
  expect(asked).toEqual(["near 123", "far 13"]);
  const all = await completed([1, 2, 3, 4], found, (left) =>
    Promise.resolve(left.map((n) => recordOf(`made${n}`))),
  );
  const names = all.map((record) => (record as OutboxRecord & { name: string }).name);
  expect(names).toEqual(["far1", "near2", "made3", "made4"]);
});

test("records that were recalled are dropped when the others cannot be made", async () => {
  const record = recordOf("recalled");
  const fail = (): Promise<OutboxRecord[]> => Promise.reject(new Error("no codes"));
  await expect(completed([1, 2], [record, null], fail)).rejects.toThrow("no codes");
  expect(record.drops).toBe(1);
});
