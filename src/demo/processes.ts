// Owns the processes the demo starts: each in its own group with its own log, and gone when it is stopped.
import { spawn } from "node:child_process";
import { closeSync, existsSync, openSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { TierkvError } from "../errors.ts";
import { DEMO_KILL_MS, DEMO_LOG_TAIL_LINES, DEMO_POLL_MS } from "../limits.ts";
import { nowMs, sleep } from "../time.ts";

export interface ProcessSpec {
  name: string;
  command: string;
  args: readonly string[];
  env: NodeJS.ProcessEnv;
  /** Also how a process that left its group is found again. */
  cwd: string;
  logPath: string;
}

/** A started process: the leader of a group of its own, which outlives us unless it is stopped. */
export class Process {
  readonly name: string;
  readonly logPath: string;
  readonly pid: number | null;
  /** How it ended, in words; null while it runs. */
  #ended: string | null = null;
  #isSuccess = false;

  constructor({ name, command, args, env, cwd, logPath }: ProcessSpec) {
    this.name = name;
    this.logPath = logPath;
    const log = openSync(logPath, "a", 0o600);
    try {
      // The log is a file and no pipe: the process must not depend on us being there.
      const stdio = ["ignore", log, log] as const;
      const child = spawn(command, args, { detached: true, stdio: [...stdio], env, cwd });
      child.once("error", (error) => (this.#ended ??= error.message));
      child.once("exit", (code, signal) => {
        this.#isSuccess = code === 0;
        this.#ended ??= signal === null ? `exit code ${code ?? 0}` : `signal ${signal}`;
      });
      child.unref();
      this.pid = child.pid ?? null;
    } finally {
      closeSync(log);
    }
  }

  /** Waits until `isReady`; throws when the process ends first or the time is over. */
  async ready(
    isReady: () => boolean | Promise<boolean>,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<void> {
    const startedMs = nowMs();
    while (!(await isReady())) {
      if (this.#ended !== null) throw this.#failed(`ended while starting (${this.#ended})`);
      if (nowMs() - startedMs > timeoutMs) throw this.#failed(`not ready after ${timeoutMs} ms`);
      await sleep(DEMO_POLL_MS, signal);
    }
  }

  /** Waits until the process has ended well. */
  async done(timeoutMs: number, signal: AbortSignal): Promise<void> {
    await this.ready(() => this.#isSuccess, timeoutMs, signal);
  }

  #failed(how: string): TierkvError {
    return new TierkvError("DEMO_FAILED", { reason: `the ${this.name}: ${how}` });
  }

  log(): string {
    return readFileSync(this.logPath, "utf8");
  }

  /** The last lines of the log. */
  tail(): string[] {
    const lines = this.log().split("\n");
    return lines.filter((line) => line.trim() !== "").slice(-DEMO_LOG_TAIL_LINES);
  }

  isRunning(): boolean {
    return this.pid !== null && isGroupAlive(this.pid);
  }

  /** Asks the leader to end, and after `graceMs` ends the whole group. Returns when nothing of it runs. */
  async stop(graceMs: number): Promise<void> {
    if (this.pid === null) return;
    trySignal(this.pid, "SIGTERM");
    await this.#gone(graceMs);
    this.kill();
    await this.#gone(DEMO_KILL_MS);
  }

  /** Ends the whole group at once. */
  kill(): void {
    if (this.pid !== null) trySignal(-this.pid, "SIGKILL");
  }

  async #gone(timeoutMs: number): Promise<void> {
    const startedMs = nowMs();
    while (this.isRunning() && nowMs() - startedMs < timeoutMs) await sleep(DEMO_POLL_MS);
  }
}

function trySignal(pid: number, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(pid, signal);
  } catch {
    return false;
  }
}

/** Whether a process of the group runs; the dead whom nobody has collected do not count. */
function isGroupAlive(group: number): boolean {
  if (!trySignal(-group, 0)) return false;
  if (!existsSync("/proc/self/stat")) return true;
  return processIds().some((pid) => {
    const stat = readStat(pid);
    const [state, , itsGroup] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return Number(itsGroup) === group && state !== "Z";
  });
}

/** Ids of the processes that work in `dir`, whatever group they are in. Empty where there is no /proc. */
export function processesIn(dir: string): number[] {
  return processIds().filter((pid) => {
    const cwd = workingDir(pid);
    return cwd === dir || cwd.startsWith(`${dir}/`) || cwd.startsWith(`${dir} (`);
  });
}

function processIds(): number[] {
  if (!existsSync("/proc/self/stat")) return [];
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number);
}

/** Where a process works; a deleted directory has " (deleted)" after it. Empty when it is not ours to know. */
function workingDir(pid: number): string {
  try {
    return readlinkSync(`/proc/${pid}/cwd`);
  } catch {
    return "";
  }
}

/** Empty for a process that has ended. */
function readStat(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/stat`, "latin1");
  } catch {
    return "";
  }
}
