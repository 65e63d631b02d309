// Owns the proof that a disk too small for a vault is refused with a fix that the vault then accepts.
import type * as Fs from "node:fs";
import { expect, test, vi } from "vitest";
import { vaultDisk } from "../../../src/vault/process/disk.ts";
import { testConfig, testDirectory } from "../../support/sidecars.ts";

const MIB = 1024 ** 2;

vi.mock("node:fs", async (original) => {
  const all = await original<typeof Fs>();
  const small = (...of: Parameters<typeof all.statfsSync>): unknown => {
    return Object.assign(all.statfsSync(...of), { blocks: 90, bavail: 90, bsize: 1024 ** 2 });
  };
  return { ...all, statfsSync: small };
});

test("a disk of less than the least size is not answered with a size below it", () => {
  const { vault } = testConfig({ socket: "/nonexistent" });
  const dataDir = testDirectory();
  expect(() => vaultDisk({ ...vault, dataDir, diskBytes: 100 * MIB })).toThrow(
    expect.objectContaining({
      code: "DISK_FAILED",
      message: expect.stringMatching(
        /has 94371840 bytes; name a folder on a disk of at least \d+ bytes/,
      ) as string,
    }),
  );
});
