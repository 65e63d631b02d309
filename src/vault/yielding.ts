// Owns a vault that gives way to its machine's user: silent while somebody is there, its memory given back when they stay.
import { toTierkvError } from "../errors.ts";
import { YIELD_POLL_MS, YIELD_RETRY_MS } from "../limits/user.ts";
import type { Logger } from "../log.ts";
import type { LaneSpans } from "../native.ts";
import { nowMs, sleep } from "../time.ts";
import type { StatsReply } from "../wire/messages.ts";
import type { PausableVault, RunningVault } from "./server.ts";
import type { Source } from "./user/source.ts";

/** `paused`: nobody reaches it, it keeps its records. `released`: its memory is given back. */
export type YieldState = "serving" | "paused" | "released";

/** What is given to others before the memory goes. */
export interface HandOver {
  /** Learns who takes something, while the vault still serves; short, whatever others do. */
  prepare(): Promise<void>;
  /** Until the signal, at most for a while. */
  run(vault: PausableVault, signal: AbortSignal): Promise<void>;
  /** Nothing is given before the next `prepare`. */
  close(): void;
}

export interface YieldingOptions {
  vault: PausableVault;
  /** Starts it again where it was, after its memory was given back. */
  open(): Promise<PausableVault>;
  /** Left out: nobody gets anything. */
  handOver?: HandOver;
  /** Closed with the vault. */
  user: Source;
  /** Nobody is there after so many milliseconds without a sign. */
  awayMs: number;
  /** How long somebody is there before memory is given back, in ms. */
  graceMs: number;
  /** How soon a failed start is tried again, in ms. */
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

  /** Of a vault that gave its memory back, as they were then. */
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
    logger.info({ awayMs }, "somebody uses this machine: the vault is silent until they have left");
  }

  async #release(): Promise<void> {
    // Whoever leaves meanwhile has it all back.
    if (!(await this.#handOver())) return;
    this.#last = { counts: this.#vault.counts(), stats: this.#vault.stats() };
    this.#state = "released";
    await this.#vault.close();
    this.#options.logger.info("the vault's memory is given back: what it has on disk stays");
  }

  /** False: the user has left, or the vault is being closed. */
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
      if (!ended.signal.aborted) logger.warn({ reason }, "not all that is hot was given to others");
    } finally {
      clearInterval(timer);
    }
    look();
    return !ended.signal.aborted;
  }

  /** Serves again; what failed is tried again later. */
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
