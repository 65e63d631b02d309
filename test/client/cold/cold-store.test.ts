// Owns the conformance of stores that others run, on real servers: Valkey alone and as a cluster, and S3.
import { afterEach, expect, test } from "vitest";
import { ItemStatus } from "../../../src/base/block.ts";
import { ColdStore } from "../../../src/client/cold/cold-store.ts";
import { Pages } from "../../support/lanes.ts";
import { NAMESPACE } from "../../support/records.ts";
import { describeStore } from "../../support/source-suite.ts";
import {
  HAS_S3,
  HAS_VALKEY,
  startBucket,
  startCluster,
  ValkeyServer,
} from "../../support/stores.ts";
import { closeAfterTest, logger, SOON_MS, until } from "../../support/vaults.ts";

function openStore(address: string, ttlS: number | null = null): ColdStore {
  return closeAfterTest(new ColdStore({ address, name: "kv", ttlS, logger }));
}

const before = { ...process.env };
afterEach(() => {
  for (const name of ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]) {
    if (before[name] === undefined) delete process.env[name];
    else process.env[name] = before[name];
  }
});

if (HAS_VALKEY) {
  describeStore("Valkey", async () => {
    const server = await ValkeyServer.start();
    return {
      store: openStore(server.address),
      damage: () => server.damageAll(),
      freeze: () => server.signal("SIGSTOP"),
      kill: () => server.kill(),
    };
  });

  describeStore("a cluster of Valkey", async () => {
    const servers = await startCluster();
    return {
      store: openStore(servers[1]!.address),
      damage: async () => {
        for (const server of servers) await server.damageAll();
      },
      kill: async () => {
        for (const server of servers) await server.kill();
      },
    };
  });
}

if (HAS_S3) {
  describeStore("S3", async () => {
    const bucket = await startBucket();
    Object.assign(process.env, bucket.env);
    return { store: openStore(bucket.address), damage: () => bucket.damageAll() };
  });
}

test.skipIf(!HAS_VALKEY)("F190 a store that comes back is used again", async () => {
  const server = await ValkeyServer.start();
  const store = openStore(server.address);
  const pages = await Pages.open(1, 4096);
  await store.store(NAMESPACE, pages.encode(), SOON_MS);
  server.signal("SIGSTOP");
  await until(async () => {
    await store.lookup(NAMESPACE, pages.keys, 100).catch(() => null);
    return store.isDown;
  }, "the store to count as down");
  server.signal("SIGCONT");
  await until(() => !store.isDown, "a probe to succeed");
  const { statuses } = await store.fetch(NAMESPACE, pages.plan(), { deadlineMs: SOON_MS });
  expect([...statuses]).toEqual([ItemStatus.ACCEPTED]);
});

test.skipIf(!HAS_VALKEY)(
  "F190 memory that is full refuses records by name and is no failure",
  async () => {
    const server = await ValkeyServer.start([
      "--maxmemory",
      "2mb",
      "--maxmemory-policy",
      "noeviction",
    ]);
    const store = openStore(server.address);
    const pages = await Pages.open(60, 65_536);
    const statuses = await store.store(NAMESPACE, pages.encode(), SOON_MS);
    expect(new Set(statuses)).toContain(ItemStatus.OVER_BUDGET);
    expect([store.isDown, store.refusal]).toEqual([false, null]);
    const { counters } = await store.stats(SOON_MS);
    expect(counters["refused_OOM"]).toBeGreaterThan(0);
  },
);

test.skipIf(!HAS_VALKEY)("records get the time to live of the configuration", async () => {
  const server = await ValkeyServer.start();
  const store = openStore(server.address, 1000);
  const pages = await Pages.open(1, 4096);
  await store.store(NAMESPACE, pages.encode(), SOON_MS);
  const key = Buffer.concat([Buffer.from("tierkv:1:"), NAMESPACE, pages.keys]);
  expect(String(await server.ask("TTL", key))).toMatch(/^:(1000|99\d)\r\n$/);
});

test("an address that cannot be used is refused with the fix", () => {
  expect(() => openStore("valkey://user:word@host:1")).toThrow(/VALKEY_PASSWORD/);
  expect(() => openStore("s3:///")).toThrow(/there is no bucket/);
});

test("a flush is refused with the reason", async () => {
  const store = openStore("valkey://127.0.0.1:1");
  await expect(store.flush()).rejects.toMatchObject({ code: "VAULT_REFUSED" });
});
