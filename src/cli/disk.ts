// Owns how much of a disk a vault takes where the configuration does not say.
import { mkdirSync, readdirSync, statfsSync, statSync } from "node:fs";
import { join } from "node:path";
import type { VaultConfig } from "../config/config.ts";
import { TierkvError, toTierkvError } from "../errors.ts";
import { DISK_BYTES_MIN, DISK_FREE_SHARE } from "../limits.ts";
import type { VaultDisk } from "../vault/server.ts";

/** null: nothing is kept on disk. Makes the directory. Throws DISK_FAILED. */
export function vaultDisk(config: VaultConfig): VaultDisk | null {
  const { dataDir, durability, diskTtlS } = config;
  if (dataDir === null) return null;
  try {
    mkdirSync(dataDir, { recursive: true, mode: 0o700 });
    return { dataDir, diskBytes: config.diskBytes ?? share(dataDir), durability, diskTtlS };
  } catch (error) {
    const fix = "set [vault] data_dir to a directory this user may write";
    const reason = `${toTierkvError(error).message}; ${fix}`;
    throw new TierkvError("DISK_FAILED", { reason }, { cause: error });
  }
}

/** What the vault's own files take belongs to the room: a restart must not shrink it. */
function share(dataDir: string): number {
  const { bavail, bsize } = statfsSync(dataDir);
  const own = readdirSync(dataDir).filter((name) => name.endsWith(".seg"));
  const held = own.reduce((sum, name) => sum + statSync(join(dataDir, name)).size, 0);
  return Math.max(DISK_BYTES_MIN, Math.floor((bavail * bsize + held) * DISK_FREE_SHARE));
}
