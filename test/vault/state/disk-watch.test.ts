// Owns the proof that a vault's log reports recovered records, write failures with their reason, and losses at the end.
import { spawnSync } from "node:child_process";
import { mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, expect, test, vi } from "vitest";
import { createLogger } from "../../../src/base/log.ts";
import { storeDiskStats } from "../../../src/base/native.ts";
import type * as Native from "../../../src/base/native.ts";
import type { StoreId, StoreDiskStats } from "../../../src/base/native.ts";
import { DiskWatch } from "../../../src/vault/state/disk-watch.ts";
import { KillableVault } from "../../faults/lib/killable.ts";
import { runInside } from "../../support/command-line.ts";
import { makeRecords, NAMESPACE } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, MIB, openClient, SOON_MS, until } from "../../support/vaults.ts";

vi.mock("../../../src/base/native.ts", async (importOriginal) => {
  const native = await importOriginal<typeof Native>();
  return { ...native, storeDiskStats: vi.fn<typeof native.storeDiskStats>() };
});

const WELL = {
  isRecovering: false,
  isFailing: false,
  queued: 0,
  queuedBytes: 0,
  trouble: "",
  quarantined: 0,
};
const FULL = "No space left on device (os error 28)";

let lines: Record<string, unknown>[] = [];
beforeEach(() => {
  lines = [];
});

function watch(dataDir = "/d"): { watched: DiskWatch; see(now: Partial<StoreDiskStats>): void } {
  const destination = {
    write: (line: string): void => void lines.push(JSON.parse(line) as Record<string, unknown>),
  };
  const logger = createLogger("test", { level: "info", tty: false, destination });
  const watched = closeAfterTest(new DiskWatch(1 as StoreId, dataDir, logger));
  const see = (now: Partial<StoreDiskStats>): void => {
    vi.mocked(storeDiskStats).mockReturnValue({ ...WELL, ...now } as StoreDiskStats);
    watched.look();
  };
  return { watched, see };
}

test("reports once, when all is read, the records of the previous run", () => {
  const { see } = watch();
  see({ isRecovering: true, records: 2, recordBytes: 20 });
  expect(lines).toEqual([]);
  see({ records: 7, recordBytes: 70 });
  see({ records: 8, recordBytes: 80 });
  expect(lines).toHaveLength(1);
  expect(lines[0]).toMatchObject({ level: "info", msg: "recovered 7 records", dataDir: "/d" });
  expect(lines[0]).toMatchObject({ records: 7, bytes: 70, seconds: expect.any(Number) as number });
});

test("tells of records that were damaged on disk, as they are found", () => {
  const { see } = watch();
  for (const quarantined of [0, 3, 3, 5]) see({ quarantined });
  const told = lines.filter(({ level }) => level === "error");
  expect(told.map(({ more, damaged }) => [more, damaged])).toEqual([
    [3, 3],
    [2, 5],
  ]);
  expect(told[0]!["msg"]).toContain("3 damaged records were found on disk and dropped");
});

test("warns of a disk that belongs to an archive, where the vault has none", () => {
  const dataDir = testDirectory();
  writeFileSync(join(dataDir, "archive"), "file:///mnt/nfs/vault-1\ntoken");
  const { see } = watch(dataDir);
  for (const records of [0, 1]) see({ records, recordBytes: 0 });
  const [, warned, ...more] = lines;
  expect([warned?.["level"], more]).toEqual(["warn", []]);
  expect(warned?.["msg"]).toContain(`the archive that ${dataDir}/archive names`);
  lines = [];
  const archive = { usedBytes: 0, pendingBytes: 0, isFailing: false, trouble: "" };
  watch(dataDir).see({ records: 0, recordBytes: 0, archive } as Partial<StoreDiskStats>);
  expect(lines).toHaveLength(1);
});

test("names each namespace of which the disk takes no records, once", () => {
  const { see } = watch();
  const [first, second] = [Buffer.alloc(32, 1), Buffer.alloc(32, 2)];
  see({ records: 0, recordBytes: 0 });
  for (const refusedNamespace of [first, first, second]) see({ refusedNamespace });
  const named = lines.slice(1).map(({ level, namespace }) => [level, namespace]);
  expect(named).toEqual([first, second].map((name) => ["error", name.toString("hex")]));
});

test("says once that writing fails, with path and errno, and once that it goes on", () => {
  const { see } = watch();
  see({ records: 0, recordBytes: 0 });
  for (const queued of [3, 4]) see({ isFailing: true, queued, trouble: FULL });
  see({ trouble: FULL });
  const [, failed, well, ...more] = lines;
  expect(more).toEqual([]);
  expect(failed).toMatchObject({ level: "error", dataDir: "/d", error: FULL, queued: 3 });
  expect(failed!["msg"]).toContain(`the disk takes no more records: ${FULL}; free room there`);
  expect(well).toMatchObject({ level: "info", msg: "the disk takes records again" });
});

test("a directory that was emptied counts as gone", () => {
  const dataDir = testDirectory();
  writeFileSync(join(dataDir, "lock"), "");
  const { watched, see } = watch(dataDir);
  see({ records: 0, recordBytes: 0 });
  expect(watched.isGone).toBe(false);
  rmSync(join(dataDir, "lock"));
  see({ records: 0, recordBytes: 0 });
  expect(watched.isGone).toBe(true);
  expect(lines.at(-1)!["msg"]).toContain("its directory was removed, emptied or replaced");
});

test("says once that the directory is another one, or gone, and goes on saying so in statistics", () => {
  const dataDir = join(testDirectory(), "data");
  mkdirSync(dataDir);
  const { watched, see } = watch(dataDir);
  see({ records: 0, recordBytes: 0 });
  expect(watched.isGone).toBe(false);
  renameSync(dataDir, `${dataDir}-away`);
  see({});
  mkdirSync(dataDir);
  see({});
  expect(watched.isGone).toBe(true);
  const [, gone, ...more] = lines;
  expect(more).toEqual([]);
  expect(gone).toMatchObject({ level: "error", dataDir });
  expect(gone!["msg"]).toMatch(
    /no more records: its directory was removed.*an empty one in its place, and start the vault/,
  );
});

test("counts at the end what was never written, and says nothing where all was", () => {
  const { watched, see } = watch();
  see({ records: 0, recordBytes: 0 });
  watched.close();
  expect(lines).toHaveLength(1);
  see({ queued: 101, queuedBytes: 1010, isFailing: true, trouble: FULL });
  watched.close();
  const lost = lines.at(-1);
  expect(lost).toMatchObject({ level: "error", records: 101, bytes: 1010, error: FULL });
  expect(lost!["msg"]).toBe("101 records were not written to disk and are lost");
});

/** A small disk needs a private mount. */
const canMount = spawnSync("unshare", ["--mount", "true"]).status === 0;

test("F12 of a disk that is full the log names errno and path, status is not ok, and what is lost is counted", async ({
  skip,
}) => {
  skip(!canMount, "a file system cannot be mounted here");
  const folder = testDirectory();
  const dataDir = join(folder, "data");
  // Sized for the vault's own limit, but mostly filled with other data.
  const mounted = `mount -t tmpfs -o size=70m tmpfs ${folder} && head -c 66m /dev/zero >${folder}/other && exec "$@"`;
  const under = ["unshare", "--mount", "sh", "-c", mounted, "sh"];
  const vault = await KillableVault.start({ isDurable: true, dataDir, diskBytes: "64MiB", under });
  const said = (part: string): Record<string, unknown> | undefined =>
    vault.log.find(({ msg }) => String(msg).includes(part));
  await until(() => said("recovered 0 records") !== undefined, "the start");
  const client = openClient(vault);
  await client.put(NAMESPACE, makeRecords(12, { payloadBytes: MIB }), SOON_MS);
  await until(() => said("the disk takes no more records") !== undefined, "the error");
  expect(said("the disk takes no more records")).toMatchObject({
    level: "error",
    dataDir,
    error: expect.stringContaining("os error 28") as string,
  });
  const config = join(folder, "t.toml");
  writeFileSync(config, `[cluster]\nrole = "inference"\nkv_cold = "${vault.address}"\n`);
  const { stdout, exitCode } = await runInside(["status", "--json", "--config", config]);
  expect([exitCode, stdout.includes('"disk_failing"')]).toEqual([1, true]);
  expect(await vault.stop()).toBe(0);
  expect(said("not written to disk and are lost")).toMatchObject({ level: "error", dataDir });
  expect(said("not written to disk and are lost")!["records"]).toBeGreaterThan(0);
});

test("a vault that is stopped logs no trouble of its disk", async () => {
  const dataDir = join(testDirectory(), "data");
  const vault = await KillableVault.start({ isDurable: true, dataDir });
  const client = openClient(vault);
  await client.put(NAMESPACE, makeRecords(12, { payloadBytes: 4096 }), SOON_MS);
  expect(await vault.stop()).toBe(0);
  expect(vault.log.filter(({ level }) => level === "error")).toEqual([]);
});

test("F109 a vault whose data_dir was taken away says that its disk fails, and serves on from memory", async () => {
  const dataDir = join(testDirectory(), "data");
  const vault = await KillableVault.start({ isDurable: true, dataDir });
  const client = openClient(vault);
  expect((await client.stats(SOON_MS)).disk?.failing).toBe(false);
  rmSync(dataDir, { recursive: true });
  const isFailing = async (): Promise<boolean> =>
    (await client.stats(SOON_MS)).disk?.failing === true;
  await until(isFailing, "the vault to say so");
  const [record] = makeRecords(1, { payloadBytes: 4096 });
  await client.put(NAMESPACE, [record!], SOON_MS);
  expect((await client.stats(SOON_MS)).disk).toMatchObject({ durableRecords: 0, durableBytes: 0 });
  expect(vault.log.some(({ msg }) => String(msg).includes("its directory was removed"))).toBe(true);
});
