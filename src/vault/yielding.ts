// Owns a vault that yields to its machine's user: paused while the machine is used, its memory freed if use goes on.
import { toTierkvError } from "../base/errors.ts";
import { YIELD_POLL_MS, YIELD_RETRY_MS } from "../base/limits/user.ts";
import type { Logger } from "../base/log.ts";
import type { LaneSpans } from "../base/native.ts";
import { nowMs, sleep } from "../base/time.ts";
import type { StatsReply } from "../wire/messages.ts";
import type { PausableVault, RunningVault } from "./server.ts";
import type { Source } from "./user/source.ts";

/** `paused`: no client is served, records are kept. `released`: the memory is freed. */
export type YieldState = "serving" | "paused" | "released";

/** Moves hot records to other vaults before the memory is freed. */
export interface HandOver {
  /** Finds vaults that take records while this one still serves; bounded in time. */
  prepare(): Promise<void>;
  /** Moves records until the signal fires or its own time limit passes. */
  run(vault: PausableVault, signal: AbortSignal): Promise<void>;
  /** Forgets the targets until the next `prepare`. */
  close(): void;
}

export interface YieldingOptions {
  vault: PausableVault;
  /** Starts the vault again at the same address, after its memory was freed. */
  open(): Promise<PausableVault>;
  /** Absent: no records are moved. */
  handOver?: HandOver;
  /** Closed with the vault. */
  user: Source;
  /** Milliseconds without activity after which the user counts as away. */
  awayMs: number;
  /** Milliseconds of use before the memory is freed. */
  graceMs: number;
  /** Milliseconds before a failed start is tried again. */
  retryMs?: number;
  logger: Logger;
}

export class YieldingVault implements RunningVault {
  readonly address: string;
  readonly #options: YieldingOptions;
  readonly #closing = new AbortController();
  readonly #ended: Promise<void>;
  #vault: PausableVault;
  #state: YieldState = "serving";
  #pausedMs = 0;
  #triedMs = -Infinity;
  #last: { counts: Readonly<Record<string, number>>; stats: StatsReply } | null = null;

  constructor(options: YieldingOptions) {
    this.address = options.vault.address;
    this.#options = options;
    this.#vault = options.vault;
    this.#ended = this.#run();
  }

  get state(): YieldState {
    return this.#state;
  }

  /** Counters; once released, those from before the memory was freed. */
  counts(): Readonly<Record<string, number>> {
    return this.#last?.counts ?? this.#vault.counts();
  }

  stats(): StatsReply {
    return this.#last?.stats ?? this.#vault.stats();
  }

  spans(): LaneSpans {
    return this.#vault.spans();
  }

  trouble(): string | null {
    if (this.#state === "serving") return this.#vault.trouble();
    return "somebody uses this machine, and nobody is served ([vault] yield_to_user)";
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await this.#ended;
    this.#options.user.close();
    this.#options.handOver?.close();
    if (this.#state !== "released") await this.#vault.close();
  }

  async #run(): Promise<void> {
    const { signal } = this.#closing;
    while (!signal.aborted) {
      try {
        await this.#step();
      } catch (error) {
        const reason = toTierkvError(error).message;
        this.#options.logger.warn({ reason }, "the vault does not serve again yet");
      }
      await sleep(YIELD_POLL_MS, signal).catch(() => {});
    }
  }

  async #step(): Promise<void> {
    const { user, awayMs, graceMs } = this.#options;
    const isAway = user.idleMs() >= awayMs;
    if (this.#state === "serving") {
      if (!isAway) await this.#pause();
    } else if (isAway) {
      await this.#serve();
    } else if (this.#state === "paused" && nowMs() - this.#pausedMs >= graceMs) {
      await this.#release();
    }
  }

  async #pause(): Promise<void> {
    const { awayMs, logger, handOver } = this.#options;
    await handOver?.prepare();
    this.#state = "paused";
    this.#pausedMs = nowMs();
    await this.#vault.pause();
    logger.info(
      { awayMs },
      "somebody uses this machine: the vault stops until the machine is free",
    );
  }

  async #release(): Promise<void> {
    // When the user leaves meanwhile, the vault keeps its records.
    if (!(await this.#handOver())) return;
    this.#last = { counts: this.#vault.counts(), stats: this.#vault.stats() };
    this.#state = "released";
    await this.#vault.close();
    this.#options.logger.info("the vault has freed its memory; records on disk stay");
  }

  /** Returns false when the user left or the vault is closing. */
  async #handOver(): Promise<boolean> {
    const { handOver, user, awayMs, logger } = this.#options;
    if (handOver === undefined) return true;
    const ended = new AbortController();
    const look = (): void => {
      if (this.#closing.signal.aborted || user.idleMs() >= awayMs) ended.abort();
    };
    const timer = setInterval(look, YIELD_POLL_MS);
    try {
      await handOver.run(this.#vault, ended.signal);
    } catch (error) {
      const reason = toTierkvError(error).message;
      if (!ended.signal.aborted)
        logger.warn({ reason }, "not all records in use were sent to other vaults");
    } finally {
      clearInterval(timer);
    }
    look();
    return !ended.signal.aborted;
  }

  /** Serves again; a failed attempt is retried after `retryMs`. */
  async #serve(): Promise<void> {
    const { retryMs = YIELD_RETRY_MS } = this.#options;
    if (nowMs() - this.#triedMs < retryMs) return;
    this.#triedMs = nowMs();
    if (this.#state === "released") {
      this.#vault = await this.#options.open();
      this.#last = null;
    } else {
      await this.#vault.resume();
    }
    this.#options.handOver?.close();
    this.#state = "serving";
    this.#triedMs = -Infinity;
    this.#options.logger.info({ address: this.address }, "nobody uses this machine: serving again");
  }
}
