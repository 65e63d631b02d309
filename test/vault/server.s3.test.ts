// Owns the proof that a bucket of a real S3 server serves as archive, and that its faults cost no record; nightly.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { ArchivedVault, bytesOf, losesDiskAndServes, someRecords } from "../support/archives.ts";
import { NAMESPACE } from "../support/records.ts";
import { DOMAIN, KEYS, S3Proxy, S3Server, SERVER } from "../support/s3-server.ts";
import { closeAfterTest, until } from "../support/vaults.ts";

const TEST_MS_MAX = 240_000;

const on = (endpoint: string): Record<string, string> => ({ ...KEYS, AWS_ENDPOINT_URL: endpoint });

test.skipIf(SERVER === null)(
  "kill -9 and a lost disk: the bucket serves",
  { timeout: TEST_MS_MAX },
  async () => {
    const server = await S3Server.start();
    const vault = new ArchivedVault("s3://bucket/vaults/1", on(`http://127.0.0.1:${server.port}`));
    await losesDiskAndServes(vault);
    expect(server.objects().every((name) => name.startsWith("vaults/1/"))).toBe(true);
  },
);

test.skipIf(SERVER === null).each([
  ["busy", /503 SlowDown/],
  ["expired", /403 ExpiredToken/],
  ["torn", /./],
  ["silent", /timeout/i],
] as const)("F81 an archive that is %s", { timeout: TEST_MS_MAX }, async (fault, says) => {
  const proxy = await S3Proxy.to((await S3Server.start()).port);
  const vault = new ArchivedVault("s3://bucket/vault", on(proxy.endpoint));
  const before = someRecords(NAMESPACE, 0, 20);
  await vault.start();
  await vault.put(NAMESPACE, before);
  await vault.settled(bytesOf(before));

  proxy.fault = fault;
  const during = someRecords(NAMESPACE, 50, 20);
  await vault.put(NAMESPACE, during);
  await until(async () => (await vault.archive()).failing, "the failure to be seen");
  const { trouble, usedBytes } = await vault.archive();
  expect(trouble).toMatch(says);
  expect(proxy.acted).toBeGreaterThan(0);
  expect(usedBytes).toBeLessThan(bytesOf([...before, ...during]));
  expect(await vault.fetch(NAMESPACE, during)).toBe(during.length);
  expect(await vault.fetch(NAMESPACE, before)).toBe(before.length);
  const { counters, disk } = await vault.stats();
  expect([counters["archive_failures"]! > 0, disk?.failing]).toEqual([true, false]);

  proxy.fault = "none";
  await vault.settled(bytesOf([...before, ...during]));
  await vault.loseDisk();
  await vault.start();
  expect(await vault.fetch(NAMESPACE, [...before, ...during])).toBe(before.length + during.length);
  expect((await vault.stats()).counters["quarantined"]).toBe(0);
});

test.skipIf(SERVER === null)("F81 a slow archive serves", { timeout: TEST_MS_MAX }, async () => {
  const proxy = await S3Proxy.to((await S3Server.start()).port);
  const vault = new ArchivedVault("s3://bucket/vault", on(proxy.endpoint));
  proxy.fault = "slow";
  const records = someRecords(NAMESPACE, 0, 20);
  await vault.start();
  await vault.put(NAMESPACE, records);
  await vault.settled(bytesOf(records));
  await vault.loseDisk();
  await vault.start();
  expect(await vault.fetch(NAMESPACE, records)).toBe(records.length);
  expect((await vault.stats()).counters["archive_failures"]).toBe(0);
});

test.skipIf(SERVER === null)(
  "a bucket that is part of the host serves",
  { timeout: TEST_MS_MAX },
  async () => {
    const server = await S3Server.start();
    const proxy = await S3Proxy.to(server.port);
    const vault = new ArchivedVault("s3://bucket/vault", {
      ...on(`http://${DOMAIN}:${server.port}`),
      AWS_VIRTUAL_HOSTED_STYLE_REQUEST: "true",
      http_proxy: proxy.endpoint,
    });
    await losesDiskAndServes(vault);
    expect([...proxy.connected]).toEqual([`bucket.${DOMAIN}:${server.port}`]);
    expect(server.objects().every((name) => name.startsWith("vault/"))).toBe(true);
  },
);

test.skipIf(SERVER === null)(
  "F146 tokens that the server no longer takes are renewed, and nothing fails",
  { timeout: TEST_MS_MAX },
  async () => {
    const server = await S3Server.start();
    const proxy = await S3Proxy.to(server.port);
    proxy.asksTokens = true;
    const folder = mkdtempSync(join(tmpdir(), "tierkv-identity-"));
    closeAfterTest({ close: () => rmSync(folder, { recursive: true, force: true }) });
    const identity = join(folder, "token");
    writeFileSync(identity, "identity");
    const vault = new ArchivedVault("s3://bucket/vault", {
      AWS_ENDPOINT_URL: proxy.endpoint,
      AWS_ROLE_ARN: "arn:aws:iam::1:role/vault",
      AWS_WEB_IDENTITY_TOKEN_FILE: identity,
    });
    const records = someRecords(NAMESPACE, 0, 60);
    await vault.start();
    for (const part of [records.slice(0, 20), records.slice(20, 40), records.slice(40)]) {
      proxy.expireTokens();
      await vault.put(NAMESPACE, part);
      await vault.settled(bytesOf(records.slice(0, records.indexOf(part.at(-1)!) + 1)));
    }
    proxy.expireTokens();
    await vault.loseDisk();
    await vault.start();
    expect(await vault.fetch(NAMESPACE, records.slice(0, 30))).toBe(30);
    proxy.expireTokens();
    expect(await vault.fetch(NAMESPACE, records.slice(30))).toBe(30);
    expect((await vault.stats()).counters["archive_failures"]).toBe(0);
    expect([proxy.acted > 0, proxy.issued]).toEqual([true, 6]);
  },
);

test.skipIf(SERVER === null)(
  "F147 uploads that a killed vault left are aborted at its next start, and no others",
  { timeout: TEST_MS_MAX },
  async () => {
    const server = await S3Server.start();
    const proxy = await S3Proxy.to(server.port);
    const records = someRecords(NAMESPACE, 0, 40);
    const stuck = async (prefix: string): Promise<ArchivedVault> => {
      const vault = new ArchivedVault(`s3://bucket/${prefix}`, on(proxy.endpoint));
      const before = server.parts().length;
      // The last request of an upload is never answered.
      proxy.swallows = ({ method, url }) => method === "POST" && !url?.includes("uploads=");
      await vault.start();
      await vault.put(NAMESPACE, records);
      const isStuck = (): boolean => proxy.acted > 0 && server.parts().length > before;
      await until(isStuck, "an upload without end");
      await vault.kill();
      proxy.swallows = () => false;
      proxy.acted = 0;
      return vault;
    };
    const vault = await stuck("vault");
    const own = server.parts().length;
    await stuck("vault/below");
    const others = server.parts().length - own;
    await vault.start();
    await vault.settled(bytesOf(records));
    expect(server.parts().length).toBe(others);
    expect(await vault.fetch(NAMESPACE, records)).toBe(records.length);
    expect(server.objects().some((name) => name.startsWith("vault/below/"))).toBe(false);
  },
);
