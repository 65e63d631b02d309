// Owns a vault's disk that a test can hang: a small file system in a file, mounted for the vault only. Linux, as root.
import { spawn, spawnSync } from "node:child_process";
import {
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, MIB, until } from "../../support/vaults.ts";

const DISK_BYTES = 160 * MIB;
const PROBE_BYTES = 4 * MIB;
/** Control groups of block devices, version 1. */
const GROUPS = "/sys/fs/cgroup/blkio";
const READ_LIMIT = "blkio.throttle.read_bps_device";

/** Returns why writes cannot be blocked here; null where they can. */
export function whyNoFreezing(): string | null {
  const image = join(tmpdir(), `tierkv-probe-${process.pid}`);
  writeFileSync(image, "");
  truncateSync(image, PROBE_BYTES);
  const folder = `${image}.d`;
  const tried =
    `trap 'rm -rf ${image} ${folder}' EXIT; mkdir ${folder} && mkfs.ext4 -q ${image} && ` +
    `mount -o loop ${image} ${folder} && fsfreeze -f ${folder} && fsfreeze -u ${folder} && umount ${folder}`;
  const isPossible = spawnSync("unshare", ["--mount", "sh", "-c", tried]).status === 0;
  return isPossible ? null : "needs root, a loop device, mkfs.ext4 and fsfreeze";
}

/** Returns why reads cannot be blocked here; null where they can. */
export function whyNoStalling(): string | null {
  const path = join(GROUPS, `tierkv-probe-${process.pid}`);
  try {
    mkdirSync(path);
    const has = readdirSync(path).includes(READ_LIMIT);
    rmdirSync(path);
    return has ? whyNoFreezing() : "needs a control group that limits reads";
  } catch {
    return "needs control groups of block devices, version 1";
  }
}

export class HungDisk {
  /** Mount point, visible to the vault alone. */
  readonly folder = testDirectory();
  readonly #image = join(testDirectory(), "disk.img");

  constructor() {
    writeFileSync(this.#image, "");
    truncateSync(this.#image, DISK_BYTES);
    spawnSync("mkfs.ext4", ["-q", this.#image]);
  }

  /** Command prefix that runs another command with the disk. */
  get under(): readonly string[] {
    const mounted = `mount -o loop ${this.#image} ${this.folder} && exec "$@"`;
    return ["unshare", "--mount", "sh", "-c", mounted, "sh"];
  }

  /** Blocks all writes of the process; returns a function that lets them go on. */
  freeze(pid: number): Promise<() => Promise<void>> {
    return held(pid, `fsfreeze -f ${this.folder}`, `fsfreeze -u ${this.folder}`);
  }

  /** Limits the process to a byte a second from the disk; returns a function that lifts the limit. */
  stallReads(pid: number): () => Promise<void> {
    const path = join(GROUPS, `tierkv-test-${process.pid}`);
    mkdirSync(path);
    const limit = (bytes: number): void =>
      writeFileSync(join(path, READ_LIMIT), `${this.#device(pid)} ${bytes}`);
    const moveTo = (group: string): void => writeFileSync(join(group, "cgroup.procs"), String(pid));
    let isOver = false;
    const over = async (): Promise<void> => {
      if (isOver) return;
      isOver = true;
      // 0 lifts the limit, so that waiting reads go on.
      limit(0);
      moveTo(GROUPS);
      const isGone = (): boolean => {
        try {
          rmdirSync(path);
          return true;
        } catch {
          return false;
        }
      };
      await until(isGone, "the group to be empty");
    };
    closeAfterTest({ close: over });
    limit(1);
    moveTo(path);
    return over;
  }

  /** Returns the device number, where the process has it mounted. */
  #device(pid: number): string {
    const mounts = readFileSync(`/proc/${pid}/mountinfo`, "utf8").split("\n");
    const mount = mounts.map((line) => line.split(" ")).find((parts) => parts[4] === this.folder);
    return mount![2]!;
  }
}

/**
 * Runs `begin` in the process's mounts, and `end` when the test says so or is gone, because nothing ends a process
 * that waits for such a disk, not even SIGKILL.
 */
async function held(pid: number, begin: string, end: string): Promise<() => Promise<void>> {
  const script = `${begin} && echo begun; read answer; ${end} && echo ended`;
  const helper = spawn("nsenter", ["-t", String(pid), "--mount", "sh", "-c", script], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  let told = "";
  helper.stdout.on("data", (text: Buffer) => (told += text.toString()));
  const over = async (): Promise<void> => {
    helper.stdin.end();
    await until(() => told.includes("ended"), "the disk to go on");
  };
  closeAfterTest({ close: over });
  await until(() => told.includes("begun"), "the disk to hang");
  return over;
}

/** Returns the threads of the process in the kernel's state D, waiting for a disk. */
export function threadsAtDisk(pid: number): number {
  const isWaiting = (task: string): boolean => {
    try {
      return / D \d+ /.test(readFileSync(`/proc/${pid}/task/${task}/stat`, "utf8"));
    } catch {
      // The process has ended meanwhile.
      return false;
    }
  };
  return readdirSync(`/proc/${pid}/task`).filter((task) => isWaiting(task)).length;
}
