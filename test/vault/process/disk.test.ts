// Owns the proof that a vault is not promised more disk than there is, and that a directory which cannot be made is refused.
import { statfsSync } from "node:fs";
import { expect, test } from "vitest";
import { vaultDisk } from "../../../src/vault/process/disk.ts";
import { testConfig, testDirectory } from "../../support/sidecars.ts";

const { vault: VAULT } = testConfig({ socket: "/nonexistent" });

test("F63 disk_bytes beyond the disk is refused with key, value and what to write", () => {
  const dataDir = testDirectory();
  const { blocks, bsize } = statfsSync(dataDir);
  const most = blocks * bsize;
  const of = (diskBytes: number): unknown => vaultDisk({ ...VAULT, dataDir, diskBytes });
  expect(() => of(most + bsize)).toThrow(
    expect.objectContaining({
      code: "DISK_FAILED",
      message: expect.stringMatching(
        new RegExp(
          `disk_bytes = ${most + bsize}, but the disk of .* has ${most} bytes; write disk_bytes = \\d+ or less`,
        ),
      ) as string,
    }),
  );
  expect(of(most)).toMatchObject({ dataDir, diskBytes: most });
});

test("without disk_bytes the disk holds no more than the archive may", () => {
  const dataDir = testDirectory();
  const archiveBytes = 64 * 2 ** 20;
  const archive = "file:///elsewhere";
  expect(vaultDisk({ ...VAULT, dataDir, archive, archiveBytes })).toMatchObject({
    diskBytes: archiveBytes,
    archive: { maxBytes: archiveBytes },
  });
  const given = { ...VAULT, dataDir, archive, archiveBytes: Number.MAX_SAFE_INTEGER };
  expect(vaultDisk(given)!.diskBytes).toBe(vaultDisk({ ...VAULT, dataDir, archive })!.diskBytes);
});

test("F109 a data_dir that cannot be made is refused at once, with the system's reason and the key", () => {
  const dataDir = "/proc/tierkv/vault";
  expect(() => vaultDisk({ ...VAULT, dataDir })).toThrow(
    expect.objectContaining({
      code: "DISK_FAILED",
      message: expect.stringMatching(/ENOENT.*; set \[vault\] data_dir to a directory/) as string,
    }),
  );
});
