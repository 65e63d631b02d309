// Owns the circumstances under which a test runs a program: without root's powers, with few open files, with a full disk.
import { spawnSync } from "node:child_process";
import { chownSync } from "node:fs";

/** Command prefix that runs another command in special circumstances; null where this machine does not allow it. */
export type Under = readonly string[] | null;

function usable(under: readonly string[]): Under {
  const [command = process.execPath, ...args] = under;
  const tried = spawnSync(command, [...args, process.execPath, "--version"], { stdio: "ignore" });
  return tried.status === 0 ? under : null;
}

const IS_ROOT = process.getuid?.() === 0;

/** Drops the capability to ignore file permissions, because tests may run as root. */
export const UNDER_PERMISSIONS: Under = IS_ROOT
  ? usable(["setpriv", "--bounding-set=-dac_override,-dac_read_search"])
  : [];

/** Limits open files below the needed number, but high enough to load the program. */
export const UNDER_FEW_FILES: Under = ["sh", "-c", 'ulimit -n 192 && exec "$@"', "sh"];

/** Mounts a small file system at `dir` for this program alone. */
export function underSmallDisk(dir: string, size = "1M"): Under {
  const mount = `mount -t tmpfs -o size=${size} none "$0" && exec "$@"`;
  return usable(["unshare", "--mount", "sh", "-c", mount, dir]);
}

/** Makes `dir` another user's, or returns a directory that is. */
export function foreignDirectory(dir: string): string {
  if (!IS_ROOT) return "/usr";
  chownSync(dir, 65_534, 65_534);
  return dir;
}
