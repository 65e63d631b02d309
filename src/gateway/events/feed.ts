// Owns the event stream of one engine: its order, gaps and restarts, and whether the index built from it can be trusted.
import { createHash } from "node:crypto";
import { splitAddress } from "../../base/hosts.ts";
import {
  GATEWAY_EVENTS_PENDING_MAX,
  GATEWAY_EVENTS_RETRY_MS,
  GATEWAY_REPLAY_MS,
  GATEWAY_REPLAY_REASONS_MAX,
  GATEWAY_REPLAY_SILENCE_MS,
} from "../../base/limits/gateway.ts";
import type { Logger } from "../../base/log.ts";
import { jitterMs } from "../../base/time.ts";
import { Zmtp } from "./zmtp.ts";

/** `away`: no connection; `replaying`: missed batches are requested; `live`: nothing is missing since the index was last empty. */
export type FeedState = "away" | "replaying" | "live";

/** Why a batch, or one event of it, could not be read; undefined: it could. */
export interface Failure {
  lost?: string;
  skipped?: string;
}

/** Receiver of the events. */
export interface Sink {
  /** Takes a batch as it was published; null: all of it was read. */
  apply(payload: Buffer): Failure | null;
  clear(): void;
  trust(isTrusted: boolean): void;
}

/** The last batch applied. No other process publishes the same bytes, because they include the time. */
export interface Mark {
  sequence: number;
  digest: string;
}

export interface FeedOptions {
  /** `host:port`. */
  events: string;
  replays: string | null;
  sink: Sink;
  /** Last batch that the sink already knows from an earlier run; null: none. */
  resume?: Mark | null;
  logger: Logger;
}

interface Batch {
  sequence: number;
  payload: Buffer;
}

const END = -1n;

/** Follows one engine until closed. A break in the order empties the index, because a missed removal would leave false blocks. */
export class EventFeed {
  readonly #options: FeedOptions;
  #subscription: Zmtp | null = null;
  #replay: Zmtp | null = null;
  #timer: NodeJS.Timeout | undefined;
  #state: FeedState = "away";
  /** Sequence number that the next batch must have; null: any. */
  #next: number | null = null;
  /** Batches that arrived during a replay of earlier ones. */
  #pending: Batch[] = [];
  #last: Batch | null = null;
  /** Where the sink's earlier knowledge ends; null while a connection is open. */
  #resume: Mark | null;
  /** The batch that a replay must begin with. */
  #awaited: Mark | null = null;
  /** Whether the request for a replay has had no answer yet. */
  #isFirstReplayed = false;
  /** Silence of a replay after which it is requested again; it doubles while none brings anything. */
  #patienceMs: number = GATEWAY_REPLAY_SILENCE_MS;
  #silence: NodeJS.Timeout | undefined;
  #isClosed = false;
  #isAwaySaid = false;
  /** Reasons of failed replays logged since the last one that succeeded. */
  readonly #failuresSaid = new Set<string>();
  readonly #skippedSaid = new Set<string>();
  /** Number of breaks in the order. */
  gaps = 0;

  constructor(options: FeedOptions) {
    this.#options = options;
    this.#resume = options.resume ?? null;
  }

  /** Returns the last batch applied, from which the next run can resume; null: it cannot. */
  get mark(): Mark | null {
    const isKept = this.#state === "live" && this.#options.replays !== null;
    return isKept && this.#last !== null ? markOf(this.#last) : null;
  }

  /** `host:port`. */
  get events(): string {
    return this.#options.events;
  }

  get state(): FeedState {
    return this.#state;
  }

  start(): void {
    const { host, port } = splitAddress(this.#options.events);
    this.#subscription = new Zmtp({
      host,
      port,
      type: "SUB",
      onOpen: () => {
        const mark = this.#resume;
        this.#resume = null;
        this.#resync(mark?.sequence ?? 0, mark);
      },
      onMessage: (frames) => this.#take(frames),
      onClose: (reason) => this.#away(reason),
    });
  }

  close(): void {
    this.#isClosed = true;
    this.#endReplay();
    this.#subscription?.close();
  }

  #away(reason: string): void {
    if (this.#isClosed) return;
    const { sink, logger, events } = this.#options;
    const words =
      this.#state === "away" ? "do not come: is it started with --kv-events-config?" : "are lost";
    // Logged once, because a wrong address is retried for ever.
    if (!this.#isAwaySaid) logger.warn({ events, reason }, `events of an engine ${words}`);
    this.#isAwaySaid = true;
    this.#state = "away";
    this.#endReplay();
    this.#pending = [];
    sink.trust(false);
    // A replay that begins with the last batch shows whether the same process still publishes, and brings what came meanwhile.
    if (this.#options.replays !== null) {
      this.#resume ??= this.#awaited ?? (this.#last === null ? null : markOf(this.#last));
    }
    if (this.#resume === null) this.#forget();
    this.#awaited = null;
    this.#timer = setTimeout(
      () => this.start(),
      jitterMs(GATEWAY_EVENTS_RETRY_MS, 2 * GATEWAY_EVENTS_RETRY_MS),
    );
  }

  /** Takes `[topic, number, batch]`. */
  #take(frames: readonly Buffer[]): void {
    const [number, payload] = frames.slice(-2);
    if (payload === undefined || number?.length !== 8) return;
    const batch = { sequence: Number(number.readBigUInt64BE()), payload };
    if (this.#state === "replaying") {
      // A batch dropped here is found missing when the replay has ended.
      if (this.#pending.length < GATEWAY_EVENTS_PENDING_MAX) this.#pending.push(batch);
      return;
    }
    if (this.#next === null || batch.sequence === this.#next) return this.#apply(batch);
    this.gaps += 1;
    this.#pending.push(batch);
    // A lower number means that the engine restarted.
    this.#resync(batch.sequence > this.#next ? this.#next : 0);
  }

  #apply(batch: Batch): void {
    const { sequence, payload } = batch;
    const { sink, logger, events } = this.#options;
    this.#next = sequence + 1;
    this.#last = batch;
    const failure = sink.apply(payload);
    if (failure?.skipped !== undefined) this.#saySkipped(failure.skipped);
    if (failure?.lost === undefined) return;
    // Its removals are lost, so the index may hold blocks that are gone.
    logger.warn({ events, reason: failure.lost }, "a batch of events cannot be read");
    this.#forget();
  }

  /** Empties the index, because it cannot be continued. */
  #forget(): void {
    this.#last = null;
    this.#options.sink.clear();
  }

  /** Requests all batches from `from` on. Empties the index first where no earlier knowledge can be continued. */
  #resync(from: number, mark: Mark | null = null): void {
    const { sink, replays } = this.#options;
    this.#state = "replaying";
    sink.trust(false);
    this.#awaited = mark;
    if ((from === 0 && mark === null) || replays === null) this.#forget();
    this.#next = replays === null ? null : from;
    if (replays === null) return this.#settle();
    this.#patienceMs = GATEWAY_REPLAY_SILENCE_MS;
    this.#progress();
    this.#requestReplay(replays, from);
  }

  /** Gives a replay more time, because it brought something. */
  #progress(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#giveUp("it takes too long"), GATEWAY_REPLAY_MS);
  }

  #requestReplay(replays: string, from: number): void {
    this.#isFirstReplayed = true;
    const { host, port } = splitAddress(replays);
    const asked = new Zmtp({
      host,
      port,
      type: "DEALER",
      onOpen: () => {
        const start = Buffer.alloc(8);
        start.writeBigUInt64BE(BigInt(from));
        asked.send([Buffer.alloc(0), start]);
        this.#listen();
      },
      onMessage: (frames) => this.#takeReplayed(frames),
      onClose: (reason) => {
        if (this.#replay === asked) this.#giveUp(reason);
      },
    });
    this.#replay = asked;
  }

  /** Requests the rest again where a replay falls silent: a publisher drops what its socket's queue does not take, END included. */
  #listen(): void {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => {
      this.#patienceMs = Math.min(2 * this.#patienceMs, GATEWAY_REPLAY_MS);
      this.#requestRest();
    }, this.#patienceMs);
  }

  /** Requests the batches behind the last contiguous one, on a new connection: the old one may still bring others. */
  #requestRest(): void {
    const { replays } = this.#options;
    if (replays === null || this.#next === null) return;
    const before = this.#replay;
    this.#replay = null;
    before?.close();
    this.#requestReplay(replays, this.#awaited?.sequence ?? this.#next);
  }

  /** Takes `["", topic, number, batch]`, or the same without the topic; number -1 marks the end. */
  #takeReplayed(frames: readonly Buffer[]): void {
    const [number, payload] = frames.slice(-2);
    if (this.#replay === null || payload === undefined || number?.length !== 8) return;
    const isEnd = number.readBigInt64BE() === END;
    const batch = isEnd ? null : { sequence: Number(number.readBigUInt64BE()), payload };
    if (this.#awaited !== null) return this.#meet(this.#awaited, batch);
    if (batch === null) {
      this.#failuresSaid.clear();
      return this.#settle();
    }
    this.#listen();
    const isFirst = this.#isFirstReplayed;
    this.#isFirstReplayed = false;
    // A batch of the request before, which this one repeats.
    if (this.#next !== null && batch.sequence < this.#next) return;
    if (batch.sequence !== this.#next) {
      // Its socket dropped batches, which it still has.
      if (!isFirst) return this.#requestRest();
      // The engine keeps only its last batches, and does not report that it begins later than requested.
      this.#forget();
    }
    this.#patienceMs = GATEWAY_REPLAY_SILENCE_MS;
    this.#progress();
    this.#apply(batch);
  }

  /** Resumes where the batch equals the mark; else (a restart, or a batch that the engine dropped) starts over. */
  #meet(mark: Mark, batch: Batch | null): void {
    this.#awaited = null;
    if (
      batch !== null &&
      markOf(batch).digest === mark.digest &&
      batch.sequence === mark.sequence
    ) {
      this.#next = batch.sequence + 1;
      this.#last = batch;
      this.#isFirstReplayed = false;
      return;
    }
    this.#endReplay();
    this.#resync(0);
  }

  #giveUp(reason: string): void {
    this.#sayFailure(reason);
    // Batches replayed up to here are whole. A later batch that does not follow on it empties the index.
    if (this.#awaited !== null || this.#next === 0) {
      this.#forget();
      this.#next = null;
    }
    this.#awaited = null;
    this.#settle();
  }

  /** Logs each reason once, because a wrong address fails at each gap and connection. */
  #sayFailure(reason: string): void {
    const said = this.#failuresSaid;
    if (said.has(reason) || said.size >= GATEWAY_REPLAY_REASONS_MAX) return;
    said.add(reason);
    const { replays, logger } = this.#options;
    const words = "an engine does not replay events: what it held before is not known";
    logger.warn({ replays, reason }, words);
  }

  /** Logs each reason once, because an engine may publish such events all the time. */
  #saySkipped(reason: string): void {
    const said = this.#skippedSaid;
    if (said.has(reason) || said.size >= GATEWAY_REPLAY_REASONS_MAX) return;
    said.add(reason);
    const { events, logger } = this.#options;
    logger.warn({ events, reason }, "an event cannot be read: its blocks are not known");
  }

  #endReplay(): void {
    clearTimeout(this.#timer);
    clearTimeout(this.#silence);
    const replay = this.#replay;
    this.#replay = null;
    replay?.close();
  }

  /** Applies the pending batches; after a hole among them the index holds only what follows. */
  #settle(): void {
    this.#endReplay();
    const pending = this.#pending;
    this.#pending = [];
    for (const batch of pending) {
      if (this.#next !== null && batch.sequence < this.#next) continue;
      if (this.#next !== null && batch.sequence > this.#next) this.#forget();
      this.#apply(batch);
    }
    this.#state = "live";
    this.#options.sink.trust(true);
    const { logger, events } = this.#options;
    if (this.#isAwaySaid) logger.info({ events }, "events of an engine arrive again");
    this.#isAwaySaid = false;
  }
}

function markOf({ sequence, payload }: Batch): Mark {
  return { sequence, digest: createHash("sha256").update(payload).digest("base64") };
}
