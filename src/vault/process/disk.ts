// Owns the paths of a vault on disk, and the default size of its disk tier.
import { lstatSync, readdirSync, statfsSync } from "node:fs";
import { join } from "node:path";
import { makeDirectory } from "../../base/directory.ts";
import { isTierkvError, TierkvError, toTierkvError } from "../../base/errors.ts";
import { ARCHIVE_DISKS, DISK_BYTES_MIN, DISK_FREE_SHARE } from "../../base/limits/general.ts";
import type { VaultConfig } from "../../config/config.ts";
import type { VaultDisk } from "../server.ts";

/** Makes the directory, and returns the disk tier's settings; null: none is configured. Throws DISK_FAILED. */
export function vaultDisk(config: VaultConfig): VaultDisk | null {
  const { dataDir, durability, diskTtlS, archive, archiveAfterS } = config;
  if (dataDir === null) return null;
  try {
    makeDirectory(dataDir);
    checkDiskBytes(config, dataDir);
    // All of the disk goes to the archive, so that a small archive bounds what is left to the vault.
    const most = archive === null ? null : config.archiveBytes;
    const diskBytes = config.diskBytes ?? Math.min(share(dataDir), most ?? Number.MAX_SAFE_INTEGER);
    const disk = { dataDir, diskBytes, durability, diskTtlS };
    if (archive === null) return disk;
    const maxBytes = Math.max(config.archiveBytes ?? diskBytes * ARCHIVE_DISKS, diskBytes);
    return { ...disk, archive: { url: archive, maxBytes, afterS: archiveAfterS } };
  } catch (error) {
    if (isTierkvError(error)) throw error;
    const fix = "set [vault] data_dir to a directory this user may write";
    const reason = `${toTierkvError(error).message}; ${fix}`;
    throw new TierkvError("DISK_FAILED", { reason }, { cause: error });
  }
}

/** Throws DISK_FAILED when disk_bytes exceeds the whole disk. */
function checkDiskBytes({ diskBytes }: VaultConfig, dataDir: string): void {
  if (diskBytes === null) return;
  const { blocks, bsize } = statfsSync(dataDir);
  const most = blocks * bsize;
  if (diskBytes <= most) return;
  const reason = `[vault] disk_bytes = ${diskBytes}, but the disk of ${dataDir} has ${most} bytes`;
  const usable = Math.floor(most * DISK_FREE_SHARE);
  const fix =
    usable < DISK_BYTES_MIN
      ? `name a folder on a disk of at least ${Math.ceil(DISK_BYTES_MIN / DISK_FREE_SHARE)} bytes`
      : `write disk_bytes = ${usable} or less, or leave it out`;
  throw new TierkvError("DISK_FAILED", { reason: `${reason}; ${fix}` });
}

/** Path of the flush numbers of a vault without a disk tier; one file per address. */
export function flushFile({ stateDir, listen }: Pick<VaultConfig, "stateDir" | "listen">): string {
  return join(stateDir, `flushes-${listen.text.replaceAll(/[^0-9A-Za-z.]+/g, "-")}.json`);
}

/** Counts the vault's own segments as free, because a restart must not shrink the tier. */
function share(dataDir: string): number {
  const { bavail, bsize } = statfsSync(dataDir);
  const own = readdirSync(dataDir).filter((name) => name.endsWith(".seg"));
  const held = own.reduce((sum, name) => sum + lstatSync(join(dataDir, name)).size, 0);
  return Math.max(DISK_BYTES_MIN, Math.floor((bavail * bsize + held) * DISK_FREE_SHARE));
}
