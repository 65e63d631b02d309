// Owns the proof that blocks in a vault's archive are priced by the archive's own rate, and a slow archive is not awaited.
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { hasBit, keyCount, newBitmap, setBit } from "../../../src/base/block.ts";
import { Archive } from "../../../src/client/archive/archive.ts";
import { NO_COST } from "../../../src/client/source.ts";
import type { BlockSource, Cost, Offer } from "../../../src/client/source.ts";
import { joinOffers, offered, offersOf } from "../../../src/client/vault/found.ts";
import { TestClient } from "../../support/record-client.ts";
import type { Scene } from "../../support/scene.ts";
import { expectNoLeak, saveAll } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { openSidecar } from "../../support/sidecars.ts";
import { closeAfterTest, logger, openVault, until } from "../../support/vaults.ts";

const PAGE = 4096;
const BLOCKS = 20;
const MS_PER_TOKEN = 10;

/** A vault that reports blocks from number `from` of a look-up on as archived. */
class FarClient extends TestClient {
  from = Infinity;
  pace: Cost | null = null;
  /** Milliseconds before each fetch. */
  waitMs = 0;
  readonly rates: (number | null)[] = [];

  override async fetch(...asked: Parameters<TestClient["fetch"]>): ReturnType<TestClient["fetch"]> {
    await sleep(this.waitMs);
    this.rates.push(this.down.rate(null));
    return await super.fetch(...asked);
  }

  override async find(
    namespace: Buffer,
    keys: Buffer,
    deadlineMs: number,
  ): Promise<readonly Offer[]> {
    const count = keyCount(keys);
    const present = offered(await super.find(namespace, keys, deadlineMs), count);
    const [near, far] = [newBitmap(count), newBitmap(count)];
    for (let at = 0; at < count; at += 1)
      if (hasBit(present, at)) setBit(at < this.from ? near : far, at);
    this.archive.cost = this.pace;
    const archived = { source: this.archive, keys: far, cost: this.pace };
    const isSome = far.some((byte) => byte !== 0);
    return [{ source: this, keys: near, cost: NO_COST }, ...(isSome ? [archived] : [])];
  }
}

type FarScene = Pick<Scene, "sidecar" | "engine"> & { client: FarClient };

/** Opens a scene with 20 held blocks of 16 tokens, of which computing takes 3.2 s, and a known fast link. */
async function openScene(): Promise<FarScene> {
  const vault = await openVault();
  const client = closeAfterTest(new FarClient({ address: vault.address, name: "kv", logger }));
  const sidecar = await openSidecar({ vaults: { kv: client, ssm: null } });
  const engine = await FakeEngine.start(sidecar.socketPath);
  const scene = { sidecar, engine, client };
  await restored(scene, "link", 1);
  const steps = [64, 128, 256].map((tokens) => [
    tokens,
    (tokens * tokens) / 2,
    tokens * MS_PER_TOKEN * 1000,
  ]);
  engine.workers[0]!.send({ t: "counts", counters: { told: 1 }, steps });
  await until(() => sidecar.counters.get("shim_told") > 0, "the steps to be heard");
  return scene;
}

async function restored(
  scene: FarScene,
  name: string,
  count = BLOCKS,
): Promise<{ reason: string; why: string | undefined; blocks: number }> {
  const blocks = makeBlocks(name, count, PAGE);
  await saveAll(scene, blocks);
  const view = await scene.engine.done(scene.engine.prefetch(hashesOf(blocks)));
  scene.engine.release(view.plan);
  const { reason, why } = view;
  return { reason: reason ?? "", why: why ?? undefined, blocks: view.placed.get(0)?.length ?? 0 };
}

test.each([
  ["a slow archive is not waited for", { firstMs: 400, nextMs: 400 }, 0, 0],
  ["what it does not have alone is restored", { firstMs: 400, nextMs: 400 }, 8, 8],
  ["one that answers late but sends fast is waited for", { firstMs: 400, nextMs: 1 }, 0, BLOCKS],
  ["a quick one is", { firstMs: 2, nextMs: 2 }, 0, BLOCKS],
  ["one of unknown pace is tried", null, 0, BLOCKS],
])("F106 %s", async (_what, pace, from, count) => {
  const scene = await openScene();
  Object.assign(scene.client, { from, pace });
  const { reason, blocks } = await restored(scene, "far");
  expect([blocks, reason]).toEqual([count, count === BLOCKS ? "complete" : "slower"]);
  await expectNoLeak(scene);
});

test("F106 while an archive is waited for the rate of the link stays as it was", async () => {
  const scene = await openScene();
  const { client } = scene;
  const known = client.down.rate(null);
  Object.assign(client, { from: 0, pace: null, waitMs: 700 });
  client.rates.length = 0;
  expect(await restored(scene, "waited for")).toMatchObject({ blocks: BLOCKS });
  expect(known).toBeGreaterThan(0);
  expect([...new Set(client.rates)]).toEqual([known]);
});

test("F106 an answer over lanes says what only the archive has, and how long that takes", () => {
  const vault = {} as BlockSource;
  const archive = new Archive(vault);
  const bits = Buffer.from([0b1110_0000, 1]);
  expect(offersOf(bits, 9, vault, archive)).toEqual([{ source: vault, keys: bits, cost: NO_COST }]);
  const tail = Buffer.alloc(8);
  tail.writeUInt32LE(2500);
  tail.writeUInt32LE(500, 4);
  const far = Buffer.from([0b0110_0000, 0]);
  const cost = { firstMs: 2.5, nextMs: 0.5 };
  const offers = offersOf(Buffer.concat([bits, far, tail]), 9, vault, archive);
  expect(offers).toEqual([
    { source: vault, keys: Buffer.from([0b1000_0000, 1]), cost: NO_COST },
    { source: archive, keys: far, cost },
  ]);
  expect(archive.cost).toEqual(cost);
  const [, unknown] = offersOf(Buffer.concat([bits, far, Buffer.alloc(8)]), 9, vault, archive);
  expect(unknown?.cost).toBeNull();
});

test("F106 parts of a look-up are joined, also where only some name the archive", () => {
  const vault = {} as BlockSource;
  const archive = new Archive(vault);
  const [plain, far] = [Buffer.from([1]), Buffer.from([3])];
  const first = [{ source: vault, keys: plain, cost: NO_COST }];
  const second = [
    { source: vault, keys: Buffer.from([4]), cost: NO_COST },
    { source: archive, keys: far, cost: null },
  ];
  const joined = joinOffers([first, second, first]);
  expect(joined.map(({ source, keys }) => [source === vault, [...keys]])).toEqual([
    [true, [1, 4, 1]],
    [false, [0, 3, 0]],
  ]);
  expect([...offered(joined, 24)]).toEqual([1, 7, 1]);
});
