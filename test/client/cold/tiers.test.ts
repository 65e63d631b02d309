// Owns the proof that a bucket behind a vault or Valkey is asked for what is missing alone, and that a prompt comes from both.
import { afterEach, expect, test, vi } from "vitest";
import { countBits, hasBit, ItemStatus, keyCount } from "../../../src/base/block.ts";
import { ColdStore } from "../../../src/client/cold/cold-store.ts";
import { Tiers } from "../../../src/client/cold/tiers.ts";
import { UNCOUNTED } from "../../../src/client/source.ts";
import type { BlockStore } from "../../../src/client/source.ts";
import { Pages } from "../../support/lanes.ts";
import { NAMESPACE, noise } from "../../support/records.ts";
import { describeStore } from "../../support/source-suite.ts";
import type { TestBucket } from "../../support/stores.ts";
import { HAS_S3, HAS_VALKEY, startBucket, ValkeyServer } from "../../support/stores.ts";
import {
  closeAfterTest,
  logger,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../../support/vaults.ts";

const PAGE = 4096;
const COUNT = 40;

const before = { ...process.env };
afterEach(() => {
  for (const name of ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]) {
    if (before[name] === undefined) delete process.env[name];
    else process.env[name] = before[name];
  }
});

function bucketAt(bucket: TestBucket): ColdStore {
  Object.assign(process.env, bucket.env);
  const settings = { class: 1 };
  return closeAfterTest(new ColdStore({ address: bucket.address, name: "kv", settings, logger }));
}

async function open(): Promise<{
  server: ValkeyServer;
  bucket: TestBucket;
  near: ColdStore;
  far: ColdStore;
  tiers: Tiers;
}> {
  const [server, bucket] = [await ValkeyServer.start(), await startBucket()];
  const settings = { class: 1 };
  const near = closeAfterTest(
    new ColdStore({ address: server.address, name: "kv", settings, logger }),
  );
  const far = bucketAt(bucket);
  return { server, bucket, near, far, tiers: closeAfterTest(new Tiers(near, far, logger)) };
}

const requests = async (far: ColdStore): Promise<number> =>
  (await far.stats(SOON_MS)).counters["requests_reads"] ?? 0;

async function fetched(store: BlockStore, pages: Pages): Promise<number[]> {
  const offers = await store.find(NAMESPACE, pages.keys, SOON_MS);
  const counts: number[] = [];
  const came = new Set<number>();
  for (const { source, keys } of offers) {
    counts.push(countBits(keys, keyCount(pages.keys)));
    const { statuses } = await source.fetch(NAMESPACE, pages.plan(), { deadlineMs: SOON_MS });
    for (let at = 0; at < pages.count; at += 1) {
      if (!hasBit(keys, at)) continue;
      expect(statuses[at]).toBe(ItemStatus.ACCEPTED);
      expect(pages.fetched(at).equals(noise(PAGE, at))).toBe(true);
      came.add(at);
    }
  }
  expect(came.size).toBe(counts.reduce((sum, count) => sum + count, 0));
  return counts;
}

if (HAS_VALKEY && HAS_S3) {
  describeStore("Valkey with a bucket behind it", async () => {
    const { server, bucket, far, tiers } = await open();
    const kill = async (): Promise<void> => {
      await server.kill();
      bucket.kill();
      // Few keys are not worth a request to a bucket, so that its end is seen by a look-up of many.
      const { keys } = await Pages.open(COUNT, PAGE);
      await until(async () => {
        await far.find(NAMESPACE, keys, SOON_MS).catch(() => null);
        return far.isDown;
      }, "the bucket to count as down");
    };
    return { store: tiers, kill };
  });
}

test.skipIf(!HAS_VALKEY || !HAS_S3)(
  "F193 what Valkey evicted comes from the bucket, the rest from Valkey, and the cost is measured",
  async () => {
    const { server, near, far, tiers } = await open();
    const pages = await Pages.open(COUNT, PAGE);
    expect(new Set(await tiers.store(NAMESPACE, pages.encode(), SOON_MS))).toEqual(
      new Set([ItemStatus.ACCEPTED]),
    );
    const asked = await requests(far);
    expect(await fetched(tiers, pages)).toEqual([COUNT]);
    expect(await requests(far)).toBe(asked);
    const keys = await server.keys("tierkv:1:*");
    for (const key of keys.slice(0, 25)) await server.ask("DEL", key);
    const [first = 0, second = 0] = await fetched(tiers, pages);
    expect([first, second]).toEqual([15, 25]);
    const [, offer] = await tiers.find(NAMESPACE, pages.keys, SOON_MS);
    expect(offer?.cost?.firstMs).toBeGreaterThan(0);
    expect(offer?.cost?.nextMs).toBeGreaterThanOrEqual(0);
    expect((await near.stats(SOON_MS)).counters["requests_reads"]).toBeUndefined();
    const { counters } = await far.stats(SOON_MS);
    expect(counters["requests_read_bytes"]).toBeGreaterThan(25 * PAGE);
    expect(counters["requests_written_bytes"]).toBeGreaterThan(COUNT * PAGE);
  },
);

test.skipIf(!HAS_VALKEY || !HAS_S3)(
  "F193 while Valkey is gone the bucket has all of it, and says why not where it has nothing",
  async () => {
    const { server, tiers } = await open();
    const pages = await Pages.open(COUNT, PAGE);
    await tiers.store(NAMESPACE, pages.encode(), SOON_MS);
    await server.kill();
    await until(async () => {
      await tiers.find(NAMESPACE, pages.keys, SOON_MS).catch(() => null);
      return tiers.state === "down";
    }, "Valkey to count as down");
    expect([tiers.isDown, tiers.refusal]).toEqual([false, "vault_down"]);
    expect(await fetched(tiers, pages)).toEqual([COUNT]);
    const unknown = tiers.find(Buffer.alloc(32, 9), pages.keys, SOON_MS);
    await expect(unknown).rejects.toMatchObject({ code: "VAULT_DOWN" });
    const uncounted = tiers.find(NAMESPACE, pages.keys, SOON_MS, UNCOUNTED);
    await expect(uncounted).rejects.toMatchObject({ code: "VAULT_DOWN" });
  },
);

test.skipIf(!HAS_VALKEY || !HAS_S3)(
  "F193 a bucket that is gone costs what only it had, and saves go on",
  async () => {
    const { server, far, tiers } = await open();
    const pages = await Pages.open(COUNT, PAGE);
    far.close();
    const statuses = await tiers.store(NAMESPACE, pages.encode(), SOON_MS);
    expect(new Set(statuses)).toEqual(new Set([ItemStatus.ACCEPTED]));
    const keys = await server.keys("tierkv:1:*");
    for (const key of keys.slice(0, 25)) await server.ask("DEL", key);
    expect(await fetched(tiers, pages)).toEqual([15]);
  },
);

test.skipIf(!HAS_S3)(
  "a vault has a bucket behind it, too, and stays what it is otherwise",
  async () => {
    const vault = await openVault();
    const near = openClient(vault);
    const tiers = closeAfterTest(new Tiers(near, bucketAt(await startBucket()), logger));
    const pages = await Pages.open(COUNT, PAGE);
    await tiers.store(NAMESPACE, pages.encode(), SOON_MS);
    expect(await fetched(tiers, pages)).toEqual([COUNT]);
    await near.flush(null, SOON_MS);
    await until(async () => (await fetched(tiers, pages)).at(-1) === COUNT, "the bucket to serve");
    expect([tiers.address, tiers.lanes, tiers.epoch]).toEqual([
      near.address,
      near.lanes,
      near.epoch,
    ]);
  },
);

test("a bucket is asked for requests alone, because audits repeat and each of its answers has a price", async () => {
  const near = openClient(await openVault());
  const far = openClient(await openVault());
  const asked = vi.spyOn(far, "find");
  const pages = await Pages.open(COUNT, PAGE);
  const tiers = new Tiers(near, far, logger);
  expect(await tiers.find(NAMESPACE, pages.keys, SOON_MS, UNCOUNTED)).toHaveLength(1);
  expect(asked).not.toHaveBeenCalled();
  expect(await tiers.find(NAMESPACE, pages.keys, SOON_MS)).toHaveLength(2);
  expect(asked).toHaveBeenCalledTimes(1);
});
