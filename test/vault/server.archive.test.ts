// Owns the proof that a vault with a lost disk recovers from its archive in a directory, without flushed records.
// @module-tag nightly
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { countBits } from "../../src/base/block.ts";
import { offered } from "../../src/client/vault/found.ts";
import { ArchivedVault, bytesOf, losesDiskAndServes, someRecords } from "../support/archives.ts";
import { runProgram } from "../support/command-line.ts";
import { keysOf, NAMESPACE } from "../support/records.ts";
import { closeAfterTest, SOON_MS, until } from "../support/vaults.ts";

const TEST_MS_MAX = 240_000;

function directory(): string {
  const folder = mkdtempSync(join(tmpdir(), "tierkv-far-"));
  closeAfterTest({ close: () => rmSync(folder, { recursive: true, force: true }) });
  return folder;
}

test("F80 kill -9 and a lost disk: the archive serves", { timeout: TEST_MS_MAX }, async () => {
  await losesDiskAndServes(new ArchivedVault(`file://${directory()}`));
});

test(
  "F106 what only the archive has is said so with a look-up, and how long it takes once it is known",
  { timeout: TEST_MS_MAX },
  async () => {
    const vault = new ArchivedVault(`file://${directory()}`);
    await vault.start();
    const records = someRecords(NAMESPACE, 0, 20);
    await vault.put(NAMESPACE, records);
    await vault.settled(bytesOf(records));
    const ask = async (): Promise<[held: number, far: number, isKnown: boolean]> => {
      const offers = await vault.client.find(NAMESPACE, keysOf(records), SOON_MS);
      const archived = offers.find(({ source }) => source === vault.client.archive);
      const count = (bits: Buffer): number => countBits(bits, 20);
      const far = archived === undefined ? 0 : count(archived.keys);
      return [count(offered(offers, 20)), far, (archived?.cost?.firstMs ?? 0) > 0];
    };
    expect(await ask()).toEqual([20, 0, false]);
    await vault.loseDisk();
    await vault.start();
    expect(await ask()).toEqual([20, 20, false]);
    expect(await vault.fetch(NAMESPACE, records.slice(0, 8))).toBe(8);
    expect(await ask()).toEqual([20, 12, true]);
  },
);

test(
  "an archive that goes away is told of, and costs nothing",
  { timeout: TEST_MS_MAX },
  async () => {
    const folder = join(directory(), "archive");
    mkdirSync(folder, { mode: 0o700 });
    const vault = new ArchivedVault(`file://${folder}`);
    await vault.start();
    rmSync(folder, { recursive: true });
    const records = someRecords(NAMESPACE, 0, 10);
    await vault.put(NAMESPACE, records);
    await until(async () => (await vault.archive()).failing, "the failure to be counted");
    const { trouble, usedBytes } = await vault.archive();
    expect([trouble.length > 0, usedBytes]).toEqual([true, 0]);
    expect(await vault.fetch(NAMESPACE, records)).toBe(records.length);
    await until(() => vault.program.stderr.includes("the archive fails"), "the log");
    const { disk } = await vault.stats();
    expect([disk?.failing, disk?.durableRecords]).toEqual([false, records.length]);
  },
);

test(
  "a flush while the archive is away ends once that is back: a restart keeps what was saved since",
  { timeout: TEST_MS_MAX },
  async () => {
    const folder = join(directory(), "archive");
    mkdirSync(folder, { mode: 0o700 });
    const vault = new ArchivedVault(`file://${folder}`);
    await vault.start();
    const [old, later] = [someRecords(NAMESPACE, 0, 10), someRecords(NAMESPACE, 50, 10)];
    await vault.put(NAMESPACE, old);
    await vault.settled(bytesOf(old));
    // As a folder below a mount that is away.
    const mark = join(folder, "owner");
    renameSync(mark, `${mark}.away`);
    expect(await vault.client.flush(NAMESPACE, SOON_MS)).toMatchObject({ volatile: true });
    renameSync(`${mark}.away`, mark);
    await vault.put(NAMESPACE, later);
    await vault.settled(bytesOf(later));
    const isEnded = (): boolean => {
      const { done, flushes } = JSON.parse(
        readFileSync(join(vault.dataDir, "flushes.json"), "utf8"),
      ) as { done: number; flushes: { number: number }[] };
      return done === flushes.at(-1)?.number;
    };
    await until(isEnded, "the flush to be recorded");
    await vault.kill();
    await vault.start();
    expect(await vault.fetch(NAMESPACE, later)).toBe(later.length);
    expect(await vault.fetch(NAMESPACE, old)).toBe(0);
  },
);

test.each([
  ["file:///proc/none", {}, /archive.*\/proc\/none/s],
  [
    "s3://bucket/vault",
    { AWS_REGION: "eu-central-1", AWS_EC2_METADATA_DISABLED: "true" },
    /s3:\/\/bucket\/vault.*set AWS_ACCESS_KEY_ID/s,
  ],
  [
    "s3://bucket/vault",
    { AWS_ACCESS_KEY_ID: "a", AWS_SECRET_ACCESS_KEY: "b" },
    /s3:\/\/bucket\/vault.*set AWS_REGION/s,
  ],
  [
    "s3://bucket/vault",
    { AWS_ACCESS_KEY_ID: "a", AWS_SECRET_ACCESS_KEY: "b", AWS_ENDPOINT_URL: "http://127.0.0.1:1" },
    /s3:\/\/bucket\/vault.*refused.*; start the server there, or correct AWS_ENDPOINT_URL/s,
  ],
])("a start with %s and %o says what is wrong", async (url, env, says) => {
  const vault = new ArchivedVault(url);
  const { exitCode, stderr } = await runProgram(["vault", "--config", vault.config], { env });
  expect(exitCode).not.toBe(0);
  expect(stderr).toMatch(says);
});

test("a directory that others may write is refused", async () => {
  const folder = directory();
  chmodSync(folder, 0o777);
  const vault = new ArchivedVault(`file://${folder}`);
  const { exitCode, stderr } = await runProgram(["vault", "--config", vault.config]);
  expect([exitCode === 0, stderr.includes(`chmod 700 ${folder}`)]).toEqual([false, true]);
});
