// Owns the checks of this machine before a process serves; each refusal names the thing, its value and the fix.
import { accessSync, constants, readFileSync, statfsSync, statSync } from "node:fs";
import { totalmem } from "node:os";
import { makeDirectory } from "../base/directory.ts";
import type { ErrorDetails } from "../base/errors.ts";
import { isTierkvError, TierkvError, toTierkvError } from "../base/errors.ts";
import { ARENA_BYTES_MIN, OPEN_FILES_MIN } from "../base/limits/general.ts";
import { readPrivate } from "../base/private-file.ts";
import type { Config } from "./config.ts";
import { placeOf } from "./load.ts";

const LIMITS = "/proc/self/limits";

/** Throws OPEN_FILES when the limit on open files is too low. Passes where the system has no such file. */
export function checkOpenFiles(limits: string | null = readLimits()): void {
  const limit = Number(/^Max open files\s+(\d+)/m.exec(limits ?? "")?.[1] ?? Infinity);
  if (limit >= OPEN_FILES_MIN) return;
  throw new TierkvError("OPEN_FILES", {
    limit,
    needed: OPEN_FILES_MIN,
    fix: "raise it with `ulimit -n 1024` (LimitNOFILE=1024 in a systemd unit)",
  });
}

function readLimits(): string | null {
  try {
    return readFileSync(LIMITS, "utf8");
  } catch {
    return null;
  }
}

/** Throws CONFIG_BAD_VALUE for an arena_bytes above the machine's memory, or an unfit arena_dir. */
export function checkArena(config: Config, memoryBytes: number = totalmem()): void {
  const { arenaBytes, arenaDir } = config.sidecar;
  if (arenaBytes !== null && arenaBytes > memoryBytes) {
    throw new TierkvError("CONFIG_BAD_VALUE", {
      ...describe(config, "arena_bytes", String(arenaBytes)),
      reason: `this machine has ${memoryBytes} bytes of memory`,
      fix: `write arena_bytes = ${Math.floor(memoryBytes / 4)} or less`,
    });
  }
  if (arenaDir !== null) checkArenaDir(config, arenaDir);
}

function checkArenaDir(config: Config, dir: string): void {
  const refuse = (reason: string): never => {
    throw new TierkvError("CONFIG_BAD_VALUE", {
      ...describe(config, "arena_dir", JSON.stringify(dir)),
      reason,
      fix: "name a directory of yours on a memory file system, or leave the key out",
    });
  };
  try {
    makeDirectory(dir);
    if (!statSync(dir).isDirectory()) refuse("it is not a directory");
    accessSync(dir, constants.W_OK | constants.X_OK);
  } catch (error) {
    if (isTierkvError(error)) throw error;
    refuse(`it cannot be used: ${toTierkvError(error).message}`);
  }
  const freeBytes = freeBytesIn(dir);
  if (freeBytes < ARENA_BYTES_MIN) {
    refuse(`${freeBytes} bytes are free there, the smallest arena takes ${ARENA_BYTES_MIN}`);
  }
}

/** Loads configured record keys, with which all records are sealed. Throws CREDENTIALS or CONFIG_BAD_VALUE for an unfit file. */
export async function loadRecordKeys(config: Config): Promise<void> {
  const file = config.sidecar.recordKeys;
  if (file === null) return;
  const text = readPrivate(file, "[sidecar] record_keys");
  const { recordKeysSet } = await import("../base/native.ts");
  try {
    recordKeysSet(Buffer.from(text));
  } catch (error) {
    throw new TierkvError("CONFIG_BAD_VALUE", {
      ...describe(config, "record_keys", JSON.stringify(file)),
      reason: toTierkvError(error).message,
      fix: "put a key on each line, as `openssl rand -hex 32` makes them",
    });
  }
}

function freeBytesIn(dir: string): number {
  const { bavail, bsize } = statfsSync(dir);
  return bavail * bsize;
}

function describe(
  config: Config,
  name: string,
  value: string,
): Pick<ErrorDetails<"CONFIG_BAD_VALUE">, "where" | "key" | "value"> {
  const where = placeOf(config, ["sidecar", name]);
  return { where, key: `[sidecar] ${name}`, value };
}
