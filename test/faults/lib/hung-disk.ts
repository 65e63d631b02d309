// Owns a disk of a vault's own that a test makes hang: a small file system in a file, mounted where only the vault sees it. Linux, as root.
import { spawn, spawnSync } from "node:child_process";
import { readdirSync, readFileSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, MIB, until } from "../../support/vaults.ts";

const DISK_BYTES = 160 * MIB;
const PROBE_BYTES = 4 * MIB;

/** Why no disk can be made to take no more writes here; null where one can. */
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

export class HungDisk {
  /** Where it is mounted, for the vault alone. */
  readonly folder = testDirectory();
  readonly #image = join(testDirectory(), "disk.img");

  constructor() {
    writeFileSync(this.#image, "");
    truncateSync(this.#image, DISK_BYTES);
    spawnSync("mkfs.ext4", ["-q", this.#image]);
  }

  /** A command in front of another one, which then has the disk. */
  get under(): readonly string[] {
    const mounted = `mount -o loop ${this.#image} ${this.folder} && exec "$@"`;
    return ["unshare", "--mount", "sh", "-c", mounted, "sh"];
  }

  /** From now on no write of the process ends; gives what makes them go on. */
  freeze(pid: number): Promise<() => Promise<void>> {
    return held(pid, `fsfreeze -f ${this.folder}`, `fsfreeze -u ${this.folder}`);
  }
}

/**
 * Runs `begin` where the process has its mounts, and `end` when the test says so or is gone: nothing ends a process
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

/** Threads of the process that wait for a disk, and for nothing else: the kernel's state D. */
export function threadsAtDisk(pid: number): number {
  const isWaiting = (task: string): boolean => {
    try {
      return / D \d+ /.test(readFileSync(`/proc/${pid}/task/${task}/stat`, "utf8"));
    } catch {
      // It has ended meanwhile.
      return false;
    }
  };
  return readdirSync(`/proc/${pid}/task`).filter((task) => isWaiting(task)).length;
}
