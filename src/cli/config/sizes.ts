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
  const { dataDir } = config.vault;
  const found: Sizes = { problems: [], notes: [] };
  checkMemory(config, found);
  const place = dataDir === null ? null : nearest(dataDir);
  if (place === null) return found;
  checkDisk(config, place, found);
  checkArchive(config, place, found);
  return found;
}

function checkMemory(config: Config, { problems, notes }: Sizes): void {
  const { maxBytes, tenantBytes } = config.vault;
  if (maxBytes !== null && tenantBytes !== null && tenantBytes > maxBytes) {
    notes.push(
      `[vault] tenant_bytes = ${tenantBytes}: max_bytes is ${maxBytes}, so no tenant can have so much`,
    );
  }
  if (maxBytes === null || maxBytes <= totalmem()) return;
  const reason = `this machine has ${showBytes(totalmem())} of memory`;
  const fix = "write less, or leave it out for half of the free memory";
  problems.push(refusal(config, "max_bytes", maxBytes, { reason, fix }));
}

/** `place`: a folder on the disk of data_dir. */
function checkDisk(config: Config, place: string, { problems, notes }: Sizes): void {
  const { dataDir, diskBytes } = config.vault;
  const disk = statfsSync(place);
  const [all, free] = [disk.blocks * disk.bsize, disk.bavail * disk.bsize];
  if (all === 0) {
    const reason = "its file system has no room for files";
    const fix = "name a folder on a disk";
    problems.push(refusal(config, "data_dir", JSON.stringify(dataDir), { reason, fix }));
    return;
  }
  if (diskBytes === null) return;
  if (diskBytes > all) {
    const reason = `the disk of ${dataDir} has ${showBytes(all)}`;
    const fix = "write less, or leave it out for a share of what is free";
    problems.push(refusal(config, "disk_bytes", diskBytes, { reason, fix }));
  } else if (diskBytes > free) {
    notes.push(
      `[vault] disk_bytes = ${diskBytes}: the disk of ${dataDir} has ${showBytes(free)} free, with what the vault has there already`,
    );
  }
}

function checkArchive({ vault: { archive } }: Config, place: string, { notes }: Sizes): void {
  if (archive?.startsWith(FILE_URL) !== true) return;
  const away = nearest(archive.slice(FILE_URL.length));
  if (away === null || statSync(away).dev !== statSync(place).dev) return;
  notes.push(
    `[vault] archive = ${JSON.stringify(archive)} is on the same disk as data_dir, and would be lost with it; is it mounted?`,
  );
}

function refusal(
  config: Config,
  name: string,
  value: number | string,
  told: { reason: string; fix: string },
): FileProblem {
  const key = `[vault] ${name}`;
  const details = { where: placeOf(config, ["vault", name]), key, value: String(value), ...told };
  return { key, error: new TierkvError("CONFIG_BAD_VALUE", details) };
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
