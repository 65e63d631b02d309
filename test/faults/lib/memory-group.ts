// Owns a memory control group of a test's own: what runs in it shares one limit, as in a container. Linux, where groups can be made.
import { mkdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { closeAfterTest, until } from "../../support/vaults.ts";

const MOUNT = "/sys/fs/cgroup";

/** The folder of this process's own group, and the file of its limit: version 1, or version 2 where memory is handed down. */
function ownGroup(): { path: string; limit: string } | null {
  try {
    const groups = readFileSync("/proc/self/cgroup", "utf8");
    const first = /^\d+:memory:(.*)$/m.exec(groups)?.[1];
    if (first !== undefined) {
      return { path: join(MOUNT, "memory", first), limit: "memory.limit_in_bytes" };
    }
    const path = join(MOUNT, /^0::(.*)$/m.exec(groups)?.[1] ?? "");
    const handsDown = readFileSync(join(path, "cgroup.subtree_control"), "utf8").includes("memory");
    return handsDown ? { path, limit: "memory.max" } : null;
  } catch {
    return null;
  }
}

export class MemoryGroup {
  readonly #path: string;

  private constructor(path: string) {
    this.#path = path;
    closeAfterTest(this);
  }

  /** Whether one can be made here. */
  static isPossible(): boolean {
    const own = ownGroup();
    if (own === null) return false;
    const path = join(own.path, `tierkv-probe-${process.pid}`);
    try {
      mkdirSync(path);
      rmdirSync(path);
      return true;
    } catch {
      return false;
    }
  }

  /** Throws where none can be made. */
  static make(limitBytes: number): MemoryGroup {
    const own = ownGroup()!;
    const path = join(own.path, `tierkv-test-${process.pid}`);
    mkdirSync(path);
    const group = new MemoryGroup(path);
    writeFileSync(join(path, own.limit), String(limitBytes));
    return group;
  }

  /** A command in front of another one, which then runs in the group. */
  get under(): readonly string[] {
    return ["sh", "-c", `echo $$ > ${join(this.#path, "cgroup.procs")} && exec "$@"`, "sh"];
  }

  /** After what ran in it has ended. */
  async close(): Promise<void> {
    const isGone = (): boolean => {
      try {
        rmdirSync(this.#path);
        return true;
      } catch {
        return false;
      }
    };
    await until(isGone, "the group to be empty");
  }
}

/** How often the kernel has ended a process of ours for want of memory, by who it was. */
export function outOfMemoryKills(): number {
  return Number(/^oom_kill (\d+)$/m.exec(readFileSync("/proc/vmstat", "utf8"))?.[1] ?? 0);
}
