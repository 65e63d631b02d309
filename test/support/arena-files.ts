// Owns the search for an arena's memory, because Node cannot receive a descriptor over a socket.
import { openSync, readdirSync, readlinkSync } from "node:fs";

/** Opens the memory with that label, found in /proc. */
export function openArena(label: number): number {
  return openSync(arenaPath(label), "r+");
}

/** Returns the path of that memory. */
export function arenaPath(label: number): string {
  const others = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  for (const pid of [String(process.pid), ...others]) {
    for (const fd of descriptorsOf(pid)) {
      const path = `/proc/${pid}/fd/${fd}`;
      if (new RegExp(`tierkv-arena-(\\d+-\\d+-)?${label}( |$)`).test(linkOf(path))) return path;
    }
  }
  throw new Error(`no arena ${label} on this machine`);
}

function descriptorsOf(pid: string): string[] {
  try {
    return readdirSync(`/proc/${pid}/fd`);
  } catch {
    return [];
  }
}

function linkOf(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return "";
  }
}
