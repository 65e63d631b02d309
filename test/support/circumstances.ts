// Owns circumstances a test runs a program under: without the powers of root, with few open files, with a full disk.
import { spawnSync } from "node:child_process";
import { chownSync } from "node:fs";

/** A command that runs what stands behind it in other circumstances; null where this machine does not let us. */
export type Under = readonly string[] | null;

function usable(under: readonly string[]): Under {
  const [command = process.execPath, ...args] = under;
  const tried = spawnSync(command, [...args, process.execPath, "--version"], { stdio: "ignore" });
  return tried.status === 0 ? under : null;
}

const IS_ROOT = process.getuid?.() === 0;

/** File permissions hold: root is asked to do without ignoring them. */
export const UNDER_PERMISSIONS: Under = IS_ROOT
  ? usable(["setpriv", "--bounding-set=-dac_override,-dac_read_search"])
  : [];

/** Fewer open files than are needed, and enough to load the program. */
export const UNDER_FEW_FILES: Under = ["sh", "-c", 'ulimit -n 192 && exec "$@"', "sh"];

/** With a file system of 1 MiB at `dir`, for this program alone. */
export function underSmallDisk(dir: string): Under {
  const mount = 'mount -t tmpfs -o size=1M none "$0" && exec "$@"';
  return usable(["unshare", "--mount", "sh", "-c", mount, dir]);
}

/** Makes `dir` another user's, or names a directory that is. */
export function foreignDirectory(dir: string): string {
  if (!IS_ROOT) return "/usr";
  chownSync(dir, 65_534, 65_534);
  return dir;
}
