// Owns the proof that nothing is dropped without a yes, and that a vault that cannot be flushed is told.
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import { HASH_BYTES, PACKED_KEY_BYTES } from "../../../src/base/block.ts";
import { createLogger } from "../../../src/base/log.ts";
import { newVaultCounters } from "../../../src/base/metrics.ts";
import { tenantOf } from "../../../src/base/tenant.ts";
import type { RunningVault } from "../../../src/vault/server.ts";
import { startVault } from "../../../src/vault/server.ts";
import { runInside } from "../../support/command-line.ts";
import { openFakeVault } from "../../support/fake-vault.ts";
import { poolKey, startPooled } from "../../support/pooled.ts";
import { keysOf, makeRecords, NAMESPACE } from "../../support/records.ts";
import { openShared, regionAddress } from "../../support/regions.ts";
import { closeAfterTest, openClient, openVault, SOON_MS } from "../../support/vaults.ts";
import type { TestVault } from "../../support/vaults.ts";

let dir = "";
let config = "";
let vault: RunningVault;

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-flush-"));
  vault = await startVault({
    config: {
      listen: { host: "127.0.0.1", port: 0, text: "127.0.0.1:0" },
      maxBytes: 32 * 1024 ** 2,
    },
    recordClass: "kv",
    logger: createLogger("vault", { level: "silent" }),
    counters: newVaultCounters(),
  });
  config = join(dir, "t.toml");
  writeFileSync(config, `[cluster]\nkv_cold = "${vault.address}"\nssm_cold = "127.0.0.1:1"\n`);
});

afterAll(async () => {
  await vault.close();
  rmSync(dir, { recursive: true });
});

const flush = (...argv: string[]): string[] => ["flush", "--config", config, ...argv];

test("asks by role and address; anything but yes drops nothing", async () => {
  for (const answer of ["", "n", "yess", "no"]) {
    const { exitCode, stdout, asked } = await runInside(flush(), { answer });
    expect([exitCode, stdout]).toEqual([1, "nothing was dropped\n"]);
    expect(asked).toEqual([
      `Drop every record of kv_cold at ${vault.address} and ssm_cold at 127.0.0.1:1? [y/N]`,
    ]);
  }
});

test.each(["y", "Yes"])("%s is a yes", async (answer) => {
  const { exitCode, stdout, asked } = await runInside(flush("--target", "kv_cold"), { answer });
  expect([exitCode, stdout]).toEqual([
    0,
    `kv_cold at ${vault.address}: 0 records dropped, 0 B freed\n`,
  ]);
  expect(asked).toEqual([`Drop every record of kv_cold at ${vault.address}? [y/N]`]);
});

test("--yes does not ask", async () => {
  const { exitCode, asked } = await runInside(flush("--yes", "--target", "kv_cold"), {
    answer: "n",
  });
  expect([exitCode, asked]).toEqual([0, []]);
});

test("one vault that is down does not keep the other from being flushed", async () => {
  const { exitCode, stdout } = await runInside(flush("--yes", "--json"));
  expect(exitCode).toBe(1);
  const nothing = {
    records: 0,
    bytes: 0,
    diskBytes: 0,
    volatile: false,
    sidecars: [],
    unknownModel: false,
    models: [],
  };
  expect(JSON.parse(stdout)).toEqual({
    schema: 1,
    flushed: [
      {
        target: "kv_cold",
        address: vault.address,
        ...nothing,
        number: expect.any(Number) as number,
        byHand: null,
        error: null,
        later: false,
      },
      {
        target: "ssm_cold",
        address: "127.0.0.1:1",
        ...nothing,
        number: 0,
        byHand: null,
        error: expect.stringContaining("ssm vault at 127.0.0.1:1 does not answer") as string,
        later: false,
      },
    ],
  });
});

test("a flush that the vault could not record is to be repeated: exit code 1", async () => {
  const reply = { records: 3, bytes: 0, diskBytes: 0, volatile: true, number: 1 };
  const Flush = (_call: unknown, done: (error: null, reply: object) => void): void =>
    done(null, { ...reply, unknownModel: false, models: [], sidecars: [] });
  const { address } = await openFakeVault({ Flush });
  const fake = join(dir, "fake.toml");
  writeFileSync(fake, `[cluster]\nkv_cold = "${address}"\n`);
  const { exitCode, stdout } = await runInside(["flush", "--config", fake, "--yes"]);
  expect([exitCode, stdout]).toEqual([1, expect.stringContaining("did not record the flush")]);
});

test("a region that is not there keeps no vault from being flushed", async () => {
  const one = join(dir, "one.toml");
  const text = `kv_cold = "${vault.address}"\nssm_cold = "shm:${join(dir, "no-region")}"\n`;
  writeFileSync(one, `[cluster]\n${text}`);
  const { exitCode, stdout } = await runInside(["flush", "--config", one, "--yes", "--json"]);
  const { flushed } = JSON.parse(stdout || "{}") as {
    flushed: { number: number; error: string }[];
  };
  expect([exitCode, flushed.length]).toEqual([1, 2]);
  expect(flushed[0]!.number).toBeGreaterThan(0);
  expect(flushed[1]!.error).toContain("no-region");
});

test("what goes can be named, and the question says it", async () => {
  const named = async (...options: string[]): Promise<string | undefined> =>
    (await runInside(flush("--target", "kv_cold", ...options), { answer: "no" })).asked[0];
  const at = `kv_cold at ${vault.address}? [y/N]`;
  expect(await named("--class", "ssm")).toBe(`Drop every ssm record of ${at}`);
  expect(await named("--model", "Qwen/Qwen3-8B")).toBe(
    `Drop every record of model Qwen/Qwen3-8B of ${at}`,
  );
  const hex = "0123456789abcdef".repeat(4);
  expect(await named("--namespace", hex)).toBe(`Drop every record in namespace 01234567 of ${at}`);
  expect(await named("--tenant", "a")).toBe(`Drop every record of this tenant of ${at}`);
  expect(await named("--tenant", "a", "--class", "kv", "--namespace", hex)).toBe(
    `Drop every kv record of this tenant in namespace 01234567 of ${at}`,
  );
  const both = await runInside(flush("--yes", "--namespace", hex, "--model", "m"));
  expect([both.exitCode, both.stderr]).toEqual([2, expect.stringContaining("one of the two")]);
  const bad = await runInside(flush("--yes", "--namespace", "12"));
  expect([bad.exitCode, bad.stderr]).toEqual([2, expect.stringContaining("64 hexadecimal")]);
});

test("a vault that is not configured cannot be flushed", async () => {
  const path = join(dir, "one.toml");
  writeFileSync(path, `[cluster]\nkv_cold = "${vault.address}"\n`);
  const { exitCode, stderr } = await runInside([
    "flush",
    "--yes",
    "--target",
    "ssm_cold",
    "--config",
    path,
  ]);
  expect(exitCode).toBe(2);
  expect(stderr).toBe(
    'tierkv: no vault to flush: write [cluster] ssm_cold = "host:port" (USAGE)\n',
  );
});

test("a tenant goes by its cache_salt, and who names another is told that nothing was found", async () => {
  const client = openClient(vault);
  const records = makeRecords(4);
  await client.put(NAMESPACE, records.slice(0, 3), SOON_MS, tenantOf("a"));
  await client.put(NAMESPACE, records.slice(3), SOON_MS, tenantOf("b"));
  const drop = async (salt: string): Promise<string> => {
    const argv = flush("--yes", "--target", "kv_cold", "--tenant", salt);
    const { exitCode, stdout } = await runInside(argv);
    expect(exitCode).toBe(salt === "c" ? 1 : 0);
    return stdout;
  };
  expect(await drop("c")).toMatch(/ 0 records dropped[^]*nothing of this tenant was found/);
  expect(await drop("a")).toMatch(/ 3 records dropped, [^\n]*\n$/);
  expect([...(await client.lookup(NAMESPACE, keysOf(records), SOON_MS))]).toEqual([0b1000]);
});

test("an empty name drops nothing, and a namespace of which there is nothing is told", async () => {
  const client = openClient(vault);
  const records = makeRecords(4);
  await client.put(NAMESPACE, records, SOON_MS);
  for (const option of ["--model", "--namespace", "--tenant", "--class", "--target"]) {
    const empty = await runInside(flush("--yes", option, ""));
    expect([empty.exitCode, empty.stdout], option).toEqual([2, ""]);
    expect(empty.stderr).toMatch(/is empty|Allowed choices/i);
  }
  const none = flush("--yes", "--target", "kv_cold", "--namespace", "0".repeat(64));
  const { exitCode, stdout } = await runInside(none);
  expect([exitCode, stdout]).toEqual([1, expect.stringContaining("nothing of this namespace")]);
  expect([...(await client.lookup(NAMESPACE, keysOf(records), SOON_MS))]).toEqual([0b1111]);
});

test("without the keys that seal records a tenant cannot be named", async () => {
  const path = join(dir, "keys.toml");
  const keys = join(dir, "no.keys");
  writeFileSync(
    path,
    `[cluster]\nkv_cold = "${vault.address}"\n[sidecar]\nrecord_keys = "${keys}"\n`,
  );
  const run = (...more: string[]) => runInside(["flush", "--yes", "--config", path, ...more]);
  const named = await run("--tenant", "a");
  expect([named.exitCode, named.stderr]).toEqual([2, expect.stringContaining(keys)]);
  expect((await run()).exitCode).toBe(0);
});

test("of vaults without pool_key the one that is away is named, the command fails, and it drops at the next", async () => {
  const records = makeRecords(3);
  const held = async (of: TestVault): Promise<number> => {
    const { records: found } = await openClient(of).take(NAMESPACE, keysOf(records), SOON_MS);
    return found.size;
  };
  const [near, away] = [await openVault(), await openVault()];
  for (const one of [near, away]) await openClient(one).put(NAMESPACE, records, SOON_MS);
  const both = join(dir, "both.toml");
  writeFileSync(both, `[cluster]\nkv_cold = ["${near.address}", "${away.address}"]\n`);
  const all = ["flush", "--yes", "--config", both];

  await away.pause();
  const first = await runInside(all);
  expect(first.exitCode).toBe(1);
  expect(first.stdout).toContain(`kv_cold at ${near.address}: 3 records dropped`);
  const [, named] = /(.*); it dropped nothing, and its records stay until it is flushed/.exec(
    first.stdout,
  ) ?? ["", ""];
  expect(named).toContain(away.address);
  await away.resume();
  expect([await held(near), await held(away)]).toEqual([0, 3]);

  const second = await runInside(all);
  expect([second.exitCode, second.stdout]).toEqual([
    0,
    expect.stringContaining(`kv_cold at ${away.address}: 3 records dropped`),
  ]);
  expect([await held(near), await held(away)]).toEqual([0, 0]);
});

/** A server with one bucket; what of S3 a flush asks for. */
async function bucketWith(
  names: readonly string[],
): Promise<{ env: Record<string, string>; names: Set<string> }> {
  const left = new Set(names);
  const server = createServer((request, response) => {
    const [path = "", query = ""] = (request.url ?? "").split("?");
    if (request.method === "DELETE") {
      left.delete(path.replace("/bucket/", ""));
      response.writeHead(204).end();
      return;
    }
    if (!query.includes("list-type=2")) {
      response.writeHead(404).end("<Error><Code>NoSuchKey</Code></Error>");
      return;
    }
    const prefix = new URLSearchParams(query).get("prefix") ?? "";
    const keys = [...left].filter((name) => name.startsWith(prefix));
    const contents = keys.map((key) => `<Contents><Key>${key}</Key></Contents>`).join("");
    const space = "http://s3.amazonaws.com/doc/2006-03-01/";
    response.end(`<ListBucketResult xmlns="${space}">${contents}</ListBucketResult>`);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closeAfterTest({ close: () => server.close() });
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const keys = { AWS_ACCESS_KEY_ID: "a", AWS_SECRET_ACCESS_KEY: "b" };
  return { names: left, env: { ...keys, AWS_ENDPOINT_URL: endpoint } };
}

test("a bucket behind a vault is emptied too, but by model or tenant, where the command for that is printed", async () => {
  const hex = NAMESPACE.toString("hex");
  const object = (namespace: string): string =>
    `tierkv/${namespace}/${"0a".repeat(32)}-${"00".repeat(PACKED_KEY_BYTES - HASH_BYTES)}`;
  const others = ["tierkv/notes.txt", "elsewhere"];
  const bucket = await bucketWith([object(hex), object("0".repeat(64)), ...others]);
  for (const [name, value] of Object.entries(bucket.env)) vi.stubEnv(name, value);
  onTestFinished(() => void vi.unstubAllEnvs());
  const address = "s3://bucket/tierkv";
  const tiers = join(dir, "tiers.toml");
  writeFileSync(tiers, `[cluster]\nkv_cold = ["${vault.address}", "${address}"]\n`);
  const records = makeRecords(2);
  await openClient(vault).put(NAMESPACE, records, SOON_MS);
  const run = (...more: string[]): ReturnType<typeof runInside> =>
    runInside(["flush", "--config", tiers, ...more]);
  const none = await run("--class", "ssm", "--yes");
  expect([none.exitCode, none.stdout]).toEqual([0, expect.not.stringContaining("bucket")]);
  const tenant = await run("--yes", "--json", "--tenant", "a");
  expect(tenant.exitCode).toBe(1);
  expect(JSON.parse(tenant.stdout)).toMatchObject({
    flushed: [
      { byHand: null, error: null },
      { address, byHand: `aws s3 rm --recursive ${address}/`, error: null },
    ],
  });
  expect(bucket.names.size).toBe(4);
  const part = await run("--namespace", hex, "--yes");
  expect([part.exitCode, part.stdout]).toEqual([
    0,
    expect.stringMatching(/: 2 records dropped,[^]*kv_cold at s3:\S+: 1 object removed\n/),
  ]);
  expect(bucket.names).toEqual(new Set([object("0".repeat(64)), ...others]));
  const all = await run("--yes");
  expect([all.exitCode, bucket.names]).toEqual([0, new Set(others)]);
  const asked = await runInside(["flush", "--config", tiers], { answer: "no" });
  expect(asked.asked).toEqual([
    `Drop every record of kv_cold at ${vault.address} and kv_cold at ${address}? [y/N]`,
  ]);
  writeFileSync(tiers, `[cluster]\nkv_cold = "${address}"\n`);
  const alone = await run("--model", "m");
  expect([alone.exitCode, alone.asked, alone.stdout]).toEqual([
    3,
    [],
    expect.stringContaining(`\n  aws s3 rm --recursive ${address}/\n`),
  ]);
});

test("the other vaults of a pool hear of a flush, not of a name that none knows", async () => {
  const { config: at } = await startPooled({ key: poolKey() });
  const hear = "the other vaults of the pool hear of it";
  const named = await runInside(["flush", "--config", at, "--yes", "--model", "wrong"]);
  expect([named.exitCode, named.stdout.includes(hear)]).toEqual([1, false]);
  const all = await runInside(["flush", "--config", at, "--yes"]);
  expect([all.exitCode, all.stdout.includes(hear)]).toEqual([0, true]);
});

test("a model that no vault knows is an error with the names that they know", async () => {
  const client = openClient(vault);
  await client.nameModel(NAMESPACE, "Qwen/Qwen3-30B-A3B", SOON_MS);
  const known = await runInside(
    flush("--yes", "--target", "kv_cold", "--model", "Qwen/Qwen3-30B-A3B"),
  );
  expect(known.exitCode).toBe(0);
  const { exitCode, stdout } = await runInside(
    flush("--yes", "--target", "kv_cold", "--model", "wrong"),
  );
  expect(exitCode).toBe(1);
  expect(stdout).toContain('no vault knows a model "wrong"');
  expect(stdout).toContain("they know Qwen/Qwen3-30B-A3B\n");
  const region = await openShared(regionAddress());
  const near = join(dir, "near.toml");
  writeFileSync(near, `[cluster]\nkv_cold = ["${region.address}", "${vault.address}"]\n`);
  const both = await runInside(["flush", "--config", near, "--yes", "--model", "wrong"]);
  expect([both.exitCode, both.stdout]).toEqual([
    1,
    expect.stringContaining("no vault knows a model"),
  ]);
});
