// Owns keeping a machine awake while its vault is used: a tool of the system's holds the lock, and lets go when this process ends.
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import type { Running } from "../../lifecycle.ts";
import { AWAKE_POLL_MS } from "../../limits/user.ts";
import type { Logger } from "../../log.ts";
import { nowMs } from "../../time.ts";
import type { RunningVault } from "../server.ts";

/** Runs `cat` under the lock: it ends with its input, so that a vault which is killed leaves no lock behind. */
type Command = readonly [string, ...string[]];

const INHIBIT: Command = [
  "systemd-inhibit",
  "--what=idle",
  "--who=tierkv",
  "--why=engines use what this vault holds",
  "--mode=block",
  "cat",
];
const CAFFEINATE: Command = ["caffeinate", "-i", "cat"];

export function inhibitorOf(platform: NodeJS.Platform = process.platform): Command {
  return platform === "darwin" ? CAFFEINATE : INHIBIT;
}

export interface AwakeOptions {
  vault: Pick<RunningVault, "counts" | "stats" | "trouble">;
  logger: Logger;
  /** So long after the last request the machine may sleep, in ms. */
  idleMs: number;
  command?: Command;
  pollMs?: number;
}

/** Counters of requests for records, which nobody but engines and those who move records makes. */
const USES = ["lookups", "fetches", "stores"] as const;

export class Awake implements Running {
  readonly #options: AwakeOptions;
  readonly #timer: NodeJS.Timeout;
  #child: ChildProcess | null = null;
  #uses: number;
  #usedMs = -Infinity;
  /** The tool is missing, or ended by itself: it is not tried again. */
  #isOff = false;

  constructor(options: AwakeOptions) {
    this.#options = options;
    this.#uses = this.#count();
    this.#timer = setInterval(() => this.#look(), options.pollMs ?? AWAKE_POLL_MS);
    this.#timer.unref();
  }

  get isHeld(): boolean {
    return this.#child !== null;
  }

  close(): Promise<void> {
    clearInterval(this.#timer);
    this.#isOff = true;
    this.#release();
    return Promise.resolve();
  }

  #look(): void {
    const uses = this.#count();
    if (uses > this.#uses) this.#usedMs = nowMs();
    this.#uses = uses;
    const { vault, idleMs } = this.#options;
    const { records, disk } = vault.stats();
    const isUsed = nowMs() - this.#usedMs < idleMs && records + (disk?.records ?? 0) > 0;
    // Whom a vault gives way to decides over the machine.
    if (!isUsed || vault.trouble() !== null) this.#release();
    else if (this.#child === null && !this.#isOff) this.#hold();
  }

  #count(): number {
    const counts = this.#options.vault.counts();
    return USES.reduce((sum, name) => sum + (counts[name] ?? 0), 0);
  }

  #hold(): void {
    const { command = inhibitorOf(), logger } = this.#options;
    const [program, ...args] = command;
    const child = spawn(program, args, { stdio: ["pipe", "ignore", "ignore"] });
    this.#child = child;
    const ended = (reason: string): void => {
      if (this.#child !== child) return;
      this.#child = null;
      this.#isOff = true;
      const text = "[vault] keep_awake: this machine may sleep while its vault is used";
      logger.warn({ program, reason }, text);
    };
    child.once("error", ({ message }) => ended(message));
    child.once("exit", (code, signal) => ended(`it ended with ${code ?? signal}`));
    child.stdin.on("error", () => {});
  }

  #release(): void {
    const child = this.#child;
    this.#child = null;
    child?.stdin?.end();
  }
}
