// Owns a memory control group for a test: its processes share one limit, as in a container. Linux with cgroups version 1.
import { mkdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { closeAfterTest, until } from "../../support/vaults.ts";

const MOUNT = "/sys/fs/cgroup/memory";
const LIMIT = "memory.limit_in_bytes";
const KILLS = "memory.oom_control";

/** Returns the folder of this process's own group. */
function ownGroup(): string | null {
  try {
    const groups = readFileSync("/proc/self/cgroup", "utf8");
    const path = /^\d+:memory:(.*)$/m.exec(groups)?.[1];
    return path === undefined ? null : join(MOUNT, path);
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

  /** Whether a group can be made here. */
  static isPossible(): boolean {
    const own = ownGroup();
    if (own === null) return false;
    const path = join(own, `tierkv-probe-${process.pid}`);
    try {
      mkdirSync(path);
      rmdirSync(path);
      return true;
    } catch {
      return false;
    }
  }

  /** Throws where no group can be made. */
  static make(limitBytes: number): MemoryGroup {
    const path = join(ownGroup()!, `tierkv-test-${process.pid}`);
    mkdirSync(path);
    const group = new MemoryGroup(path);
    writeFileSync(join(path, LIMIT), String(limitBytes));
    return group;
  }

  /** Command prefix that runs another command in the group. */
  get under(): readonly string[] {
    return ["sh", "-c", `echo $$ > ${join(this.#path, "cgroup.procs")} && exec "$@"`, "sh"];
  }

  /** Processes of the group that the kernel's OOM killer ended. */
  get killed(): number {
    return Number(
      /^oom_kill (\d+)$/m.exec(readFileSync(join(this.#path, KILLS), "utf8"))?.[1] ?? 0,
    );
  }

  /** Call after its processes have ended. */
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
