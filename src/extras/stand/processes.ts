// Owns the processes a stand starts: each in its own group with its own log, and gone when it is stopped.
import { spawn } from "node:child_process";
import { closeSync, existsSync, openSync, readdirSync, readFileSync } from "node:fs";
import { TierkvError } from "../../base/errors.ts";
import { DEMO_KILL_MS, DEMO_LOG_TAIL_LINES, DEMO_POLL_MS } from "../../base/limits/general.ts";
import { becomes } from "../../base/time.ts";

export interface ProcessSpec {
  name: string;
  command: string;
  args: readonly string[];
  env: NodeJS.ProcessEnv;
  cwd: string;
  logPath: string;
}

export function failed(reason: string): TierkvError {
  return new TierkvError("DEMO_FAILED", { reason });
}

/** Polls until `isSo` is true; throws `failed(reason)` at the timeout. */
export async function waitUntil(
  isSo: () => boolean | Promise<boolean>,
  timeoutMs: number,
  reason: string,
  signal?: AbortSignal,
): Promise<void> {
  if (!(await becomes(isSo, timeoutMs, DEMO_POLL_MS, signal))) throw failed(reason);
}

/** A started process: the leader of a group of its own, which outlives us unless it is stopped. */
export class Process {
  readonly name: string;
  readonly logPath: string;
  readonly pid: number | null;
  /** How it ended, in words; null while it runs. */
  #ended: string | null = null;

  constructor({ name, command, args, env, cwd, logPath }: ProcessSpec) {
    this.name = name;
    this.logPath = logPath;
    // The log is a file, not a pipe, so that the process does not depend on this one.
    const log = openSync(logPath, "a", 0o600);
    const child = spawn(command, args, { detached: true, stdio: ["ignore", log, log], env, cwd });
    closeSync(log);
    child.once("error", (error) => (this.#ended ??= error.message));
    child.once("exit", (code, signal) => (this.#ended ??= signal ?? `exit code ${code ?? 0}`));
    child.unref();
    this.pid = child.pid ?? null;
  }

  /** Waits until `isReady`; throws when the process ends first, or at the timeout. */
  async ready(
    isReady: () => boolean | Promise<boolean>,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<void> {
    const check = async (): Promise<boolean> => {
      if (await isReady()) return true;
      if (this.#ended === null) return false;
      throw failed(`the ${this.name}: ended while starting (${this.#ended})`);
    };
    await waitUntil(check, timeoutMs, `the ${this.name}: not ready after ${timeoutMs} ms`, signal);
  }

  /** Waits until the process has ended well. */
  async done(timeoutMs: number, signal: AbortSignal): Promise<void> {
    await this.ready(() => this.#ended === "exit code 0", timeoutMs, signal);
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

  /** Asks the leader to end, and after `graceMs` ends the whole group. */
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
    await becomes(() => !this.isRunning(), timeoutMs, DEMO_POLL_MS);
  }
}

function trySignal(pid: number, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(pid, signal);
  } catch {
    return false;
  }
}

/** Whether a process of the group runs; zombies do not count. */
function isGroupAlive(group: number): boolean {
  if (!trySignal(-group, 0)) return false;
  if (!existsSync("/proc/self/stat")) return true;
  return readdirSync("/proc").some((pid) => {
    if (!/^\d+$/.test(pid)) return false;
    const stat = readStat(pid);
    const [state, , itsGroup] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return Number(itsGroup) === group && state !== "Z";
  });
}

/** Empty for a process that has ended. */
function readStat(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/stat`, "latin1");
  } catch {
    return "";
  }
}
