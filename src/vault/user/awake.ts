// Owns the sleep lock of a machine whose vault is used; a system tool holds it until this process ends.
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import type { Running } from "../../base/lifecycle.ts";
import { AWAKE_POLL_MS } from "../../base/limits/user.ts";
import type { Logger } from "../../base/log.ts";
import { nowMs } from "../../base/time.ts";
import type { StatsReply } from "../../wire/messages.ts";

/** Runs `cat` under the lock, because `cat` ends with its input: a killed vault leaves no lock behind. */
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

/** The vault whose use keeps the machine awake. */
interface WatchedVault {
  counts(): Readonly<Record<string, number>>;
  stats(): Pick<StatsReply, "records" | "disk">;
  /** null: the vault serves. */
  trouble(): string | null;
}

export interface AwakeOptions {
  vault: WatchedVault;
  logger: Logger;
  /** Milliseconds after the last request until the machine may sleep. */
  idleMs: number;
  command?: Command;
  pollMs?: number;
}

/** Counters of requests for records, which only engines and moves between vaults make. */
const USES = ["lookups", "fetches", "stores"] as const;

export class Awake implements Running {
  readonly #options: AwakeOptions;
  readonly #timer: NodeJS.Timeout;
  #child: ChildProcess | null = null;
  #uses: number;
  #usedMs = -Infinity;
  /** Whether the tool is missing or ended by itself; then it is not tried again. */
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
    // A paused vault releases the lock, because its user decides over the machine.
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
