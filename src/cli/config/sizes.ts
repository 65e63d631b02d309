// Owns the size checks of `tierkv config check`: whether disks and memory have what the configuration claims of them.
import { statfsSync, statSync } from "node:fs";
import { totalmem } from "node:os";
import { dirname } from "node:path";
import { TierkvError } from "../../base/errors.ts";
import { showBytes } from "../../base/text.ts";
import type { Config } from "../../config/config.ts";
import { placeOf } from "../../config/load.ts";
import type { FileProblem } from "./named-files.ts";

const FILE_URL = "file://";

export interface Sizes {
  problems: FileProblem[];
  /** Doubts, which make no configuration bad. */
  notes: string[];
}

/** Returns what a vault's sizes and folders exceed or share on this machine; makes nothing. */
export function vaultSizes(config: Config): Sizes {
  const { maxBytes, dataDir, diskBytes, archive } = config.vault;
  const problems: FileProblem[] = [];
  const notes: string[] = [];
  const refuse = (name: string, value: number, reason: string, fix: string): void => {
    const key = `[vault] ${name}`;
    const where = placeOf(config, ["vault", name]);
    const details = { where, key, value: String(value), reason, fix };
    problems.push({ key, error: new TierkvError("CONFIG_BAD_VALUE", details) });
  };
  if (maxBytes !== null && maxBytes > totalmem()) {
    const most = `this machine has ${showBytes(totalmem())} of memory`;
    refuse("max_bytes", maxBytes, most, "write less, or leave it out for half of the free memory");
  }
  const place = dataDir === null ? null : nearest(dataDir);
  if (place !== null && diskBytes !== null) {
    const disk = statfsSync(place);
    const [all, free] = [disk.blocks * disk.bsize, disk.bavail * disk.bsize];
    if (diskBytes > all) {
      const most = `the disk of ${dataDir} has ${showBytes(all)}`;
      refuse(
        "disk_bytes",
        diskBytes,
        most,
        "write less, or leave it out for a share of what is free",
      );
    } else if (diskBytes > free) {
      notes.push(
        `[vault] disk_bytes = ${diskBytes}: the disk of ${dataDir} has ${showBytes(free)} free, with what the vault has there already`,
      );
    }
  }
  const away =
    archive?.startsWith(FILE_URL) === true ? nearest(archive.slice(FILE_URL.length)) : null;
  if (place !== null && away !== null && statSync(away).dev === statSync(place).dev) {
    notes.push(
      `[vault] archive = ${JSON.stringify(archive)} is on the same disk as data_dir, and would be lost with it; is it mounted?`,
    );
  }
  return { problems, notes };
}

/** Returns the folder, or its nearest parent that is there; null: this user cannot see it, which the check of folders says. */
function nearest(folder: string): string | null {
  try {
    let there = folder;
    while (statSync(there, { throwIfNoEntry: false }) === undefined) there = dirname(there);
    return there;
  } catch {
    return null;
  }
}
