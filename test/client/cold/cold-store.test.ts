// Owns the conformance of stores that others run, on real servers: Valkey alone and as a cluster, and S3.
import type { AddressInfo } from "node:net";
import { createServer } from "node:tls";
import type { TlsOptions } from "node:tls";
import { afterEach, expect, test } from "vitest";
import { ItemStatus } from "../../../src/base/block.ts";
import type { ColdSettings } from "../../../src/base/native.ts";
import { ColdStore } from "../../../src/client/cold/cold-store.ts";
import { valkeyRecordBytes } from "../../../src/extras/plan/stores.ts";
import { certificate } from "../../support/closed-vaults.ts";
import { Pages } from "../../support/lanes.ts";
import { NAMESPACE } from "../../support/records.ts";
import { describeStore } from "../../support/source-suite.ts";
import {
  HAS_REDIS,
  HAS_S3,
  HAS_VALKEY,
  REDIS,
  startBucket,
  startCluster,
  ValkeyServer,
} from "../../support/stores.ts";
import { closeAfterTest, logger, SOON_MS, until } from "../../support/vaults.ts";

function openStore(address: string, more: Partial<ColdSettings> = {}): ColdStore {
  const settings = { class: 1, ...more };
  return closeAfterTest(new ColdStore({ address, name: "kv", settings, logger }));
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
  const store = openStore(server.address, { ttlS: 1000 });
  const pages = await Pages.open(1, 4096);
  await store.store(NAMESPACE, pages.encode(), SOON_MS);
  const [key = ""] = await server.keys("tierkv:1:*");
  expect(String(await server.ask("TTL", key))).toMatch(/^:(1000|99\d)\r\n$/);
});

test("an address that cannot be used is refused with the fix", () => {
  expect(() => openStore("valkey://user:word@host:1")).toThrow(/VALKEY_PASSWORD/);
  expect(() => openStore("s3:///")).toThrow(/there is no bucket/);
});

test.skipIf(!HAS_S3)("a flush removes a bucket's objects of a namespace, or all", async () => {
  const bucket = await startBucket();
  Object.assign(process.env, bucket.env);
  const pages = await Pages.open(40, 4096);
  const others = Buffer.from(NAMESPACE.map((byte) => byte ^ 1)) as typeof NAMESPACE;
  const one = openStore(bucket.address);
  for (const namespace of [NAMESPACE, others]) await one.store(namespace, pages.encode(), SOON_MS);
  const all = bucket.objects().length;
  const { records } = await one.flush(NAMESPACE, SOON_MS);
  expect([records > 0, bucket.objects().length]).toEqual([true, all - records]);
  const found = await openStore(bucket.address).lookup(NAMESPACE, pages.keys, SOON_MS);
  expect(found.every((byte) => byte === 0)).toBe(true);
  expect(bucket.objects().every((name) => name.includes(others.toString("hex")))).toBe(true);
  expect(await one.flush(null, SOON_MS)).toMatchObject({ records: all - records });
  expect(bucket.objects()).toEqual([]);
});

test("a flush of a bucket by model or tenant is refused with the reason", async () => {
  const endpoint = { AWS_ENDPOINT_URL: "http://127.0.0.1:1" };
  Object.assign(process.env, { ...endpoint, AWS_ACCESS_KEY_ID: "a", AWS_SECRET_ACCESS_KEY: "b" });
  const store = openStore("s3://bucket/prefix");
  for (const [model, tenant] of [
    ["m", 0],
    [null, 7],
  ] as const)
    await expect(store.flush(null, SOON_MS, null, model, tenant)).rejects.toMatchObject({
      code: "VAULT_REFUSED",
    });
});

test.skipIf(!HAS_VALKEY)(
  "a flush reaches every client, with its scope, before the next answer is used",
  async () => {
    const server = await ValkeyServer.start();
    const [one, other] = [openStore(server.address), openStore(server.address)];
    const pages = await Pages.open(3, 4096);
    one.learnModel(NAMESPACE, "m");
    await one.nameModel(NAMESPACE, "m", SOON_MS);
    await one.store(NAMESPACE, pages.encode(), SOON_MS, 5);
    const held = (store: ColdStore, tenant: number): Promise<number> =>
      store
        .lookup(NAMESPACE, pages.keys, SOON_MS, { trace: null, isCounted: true, tenant })
        .then((bits) => bits[0] ?? 0);
    expect([await held(one, 5), await held(other, 5)]).toEqual([0b111, 0b111]);
    const heard: unknown[] = [];
    other.flushes.listen({ onHello() {}, onFlush: (scopes) => heard.push(scopes) });
    const { unknownModel, models } = await one.flush(null, SOON_MS, "kv", "n");
    expect([unknownModel, models]).toEqual([true, ["m"]]);
    expect(await held(other, 5)).toBe(0b111);
    await one.flush(null, SOON_MS, null, "m", 5);
    expect([await held(other, 5), await held(other, 0)]).toEqual([0, 0b111]);
    await one.flush(NAMESPACE, SOON_MS);
    expect(await held(other, 0)).toBe(0);
    const all = { everyNamespace: false, namespaces: [], tenant: 0, recordClass: 0, model: "" };
    expect(heard).toEqual([
      [{ ...all, number: 1, recordClass: 1, model: "n" }],
      [{ ...all, number: 2, model: "m", tenant: 5 }],
      [{ ...all, number: 3, namespaces: [NAMESPACE] }],
    ]);
    // Records made with knowledge of fewer flushes than took them are not stored.
    const late = await other.store(NAMESPACE, pages.encode(), SOON_MS, 0, 2);
    expect(late).toEqual([ItemStatus.INCOMPLETE, ItemStatus.INCOMPLETE, ItemStatus.INCOMPLETE]);
    expect(await other.store(NAMESPACE, pages.encode(), SOON_MS, 0, 3)).toEqual([1, 1, 1]);
  },
);

test.skipIf(!HAS_VALKEY)("a watch ends with another client's flush", async () => {
  const server = await ValkeyServer.start();
  const [one, other] = [openStore(server.address), openStore(server.address)];
  await other.hello(SOON_MS);
  const heard: unknown[] = [];
  other.flushes.listen({ onHello() {}, onFlush: (scopes) => heard.push(scopes) });
  const watching = other.watch(null, SOON_MS, new AbortController().signal);
  await one.flush(null, SOON_MS);
  await watching;
  expect(heard).toHaveLength(1);
});

test.skipIf(!HAS_VALKEY)("a server tells its memory, its policy and its keys", async () => {
  const server = await ValkeyServer.start([
    "--maxmemory",
    "64mb",
    "--maxmemory-policy",
    "allkeys-lfu",
  ]);
  const store = openStore(server.address, { ttlS: 1000 });
  const pages = await Pages.open(2, 4096);
  await store.store(NAMESPACE, pages.encode(), SOON_MS);
  const [node] = await store.nodes(SOON_MS);
  // Three copies of the list of flushes lie beside the records, and stay.
  expect(node).toMatchObject({
    maxBytes: 64 << 20,
    policy: "allkeys-lfu",
    keys: 5,
    expiring: 2,
    trouble: "",
  });
  expect(await store.stats(SOON_MS)).toMatchObject({ maxBytes: 64 << 20, records: 5 });
});

/** Memory that records of these bytes take, by what the server says of each and of all. */
async function memoryOf(
  server: ValkeyServer,
  bytes: number,
): Promise<{ each: number; all: number }> {
  const count = 24;
  const empty = await server.info("used_memory");
  const others = await server.info("connected_clients");
  const store = openStore(server.address, { ttlS: 1000 });
  const pages = await Pages.open(count, bytes);
  await store.store(NAMESPACE, pages.encode(), SOON_MS);
  store.close();
  // The buffers of a connection are the server's until it has seen its end.
  await until(async () => (await server.info("connected_clients")) <= others, "a closed client");
  const [key = ""] = await server.keys("tierkv:1:*");
  const each = Number(String(await server.ask("MEMORY", "USAGE", key)).slice(1));
  return { each, all: ((await server.info("used_memory")) - empty) / count };
}

/** Of powers of two jemalloc takes a quarter more, as a record has a header, too. */
const SIZES = [4096, 65_536, 131_072, 139_264, 1_048_576];

test.skipIf(!HAS_REDIS)("a plan says what a record takes in a server with jemalloc", async () => {
  for (const bytes of SIZES) {
    const server = await ValkeyServer.start([], { program: REDIS });
    const planned = valkeyRecordBytes(bytes);
    const { each, all } = await memoryOf(server, bytes);
    expect(each, `${bytes} bytes`).toBeLessThanOrEqual(planned);
    expect(each, `${bytes} bytes`).toBeGreaterThan(planned - 400);
    // The first client's buffers and the tables of an empty server are in it.
    expect(all, `${bytes} bytes`).toBeLessThan(planned + 65_536);
  }
});

test.skipIf(!HAS_VALKEY)("a plan holds for a server with another allocator", async () => {
  for (const bytes of SIZES) {
    const { each } = await memoryOf(await ValkeyServer.start(), bytes);
    expect(each, `${bytes} bytes`).toBeLessThanOrEqual(valkeyRecordBytes(bytes));
  }
});

/** A server that ends each handshake with a certificate of its own CA; nothing is served. */
async function startForeign(more: TlsOptions = {}): Promise<{ port: number; caPem: Buffer }> {
  const ca = certificate("ca");
  const { certPem, keyPem } = certificate("server", ca);
  const server = createServer({ cert: certPem, key: keyPem, ca: ca.certPem, ...more });
  server.on("tlsClientError", () => {});
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  closeAfterTest({ close: () => server.close() });
  return { port: (server.address() as AddressInfo).port, caPem: Buffer.from(ca.certPem) };
}

test("a certificate that is not trusted, or missing, names the setting that mends it", async () => {
  const foreign = await startForeign();
  const failure = async (store: ColdStore): Promise<string> =>
    await store.lookup(NAMESPACE, Buffer.alloc(36), 5_000).then(
      () => "found",
      ({ message }: Error) => message,
    );
  const valkey = await failure(openStore(`valkeys://127.0.0.1:${foreign.port}`));
  expect(valkey).toMatch(/UnknownIssuer; name the CA .* with \[cluster\] store_tls_ca/);
  const strict = await startForeign({ requestCert: true });
  const settings = { caPem: strict.caPem } as Partial<ColdSettings>;
  const asked = await failure(openStore(`valkeys://127.0.0.1:${strict.port}`, settings));
  expect(asked).toMatch(/\[cluster\] store_tls_cert and store_tls_key/);
  process.env["AWS_ENDPOINT_URL"] = `https://127.0.0.1:${foreign.port}`;
  process.env["AWS_ACCESS_KEY_ID"] = "of the test";
  process.env["AWS_SECRET_ACCESS_KEY"] = "of the test";
  expect(await failure(openStore("s3://bucket/prefix"))).toContain(
    "let the variable AWS_CA_BUNDLE",
  );
});
