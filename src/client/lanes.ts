// Owns the lanes of one client to its vault: opened after a hello, one promise per request, opened again when they broke.
import { ItemStatus } from "../block.ts";
import { TierkvError, toTierkvError } from "../errors.ts";
import {
  LANES_OPEN_WAIT_MS,
  LANES_PAUSE_MAX_MS,
  LANES_PAUSE_MIN_MS,
  LANES_POLL_MS,
  MADE_NOW,
} from "../limits.ts";
import type { Logger } from "../log.ts";
import {
  type LaneClientTls,
  lanesCancel,
  lanesClose,
  lanesFetch,
  lanesLookup,
  lanesOpen,
  lanesProbe,
  lanesProgress,
  lanesStore,
} from "../native.ts";
import { jitterMs, nowMs, sleep } from "../time.ts";
import type { HelloReply } from "../wire/messages.ts";
import type { CallOptions } from "./channel.ts";
import type { Retries } from "./retries.ts";

export interface LanesOptions {
  /** The vault's one port, or its socket. */
  address: string;
  /** How many; 0: none. */
  count: number;
  /** For the log. */
  label: string;
  logger: Logger;
  /** Whom to trust on them; absent: they are in clear. */
  tls?: LaneClientTls | undefined;
  /** What fails here may be tried again over gRPC, as far as this goes. */
  retries: Retries;
  /** Says hello again: every session needs a token of its own. */
  renew(): Promise<unknown>;
}

/** Where records are to land; one entry (leases: a pair of slot and generation) per key. */
export interface LandingPlan {
  arena: number;
  fidelity: number;
  /** Packed, 36 bytes each, in need order. */
  keys: Buffer;
  /** Native geometries. */
  geometries: Uint32Array;
  leases: Uint32Array;
}

/** What became of a request's items. */
export interface Settled {
  /** One per item; INCOMPLETE where the lanes broke before it was known. */
  statuses: Uint8Array;
  /** Record bytes that travelled. */
  bytes: number;
  /** Why the first bad record was refused here. */
  reason: string | null;
}

/** Bytes that are no record, and how long they took. */
export interface Probed {
  bytes: number;
  ms: number;
}

export interface RequestOptions extends CallOptions {
  /** So many bytes have arrived, or left, since the last time. */
  onProgress(bytes: number): void;
  /** The error when time runs out. */
  late(): Error;
  /** The error when it failed, and nothing may be tried a second time for now; null: it never is. */
  spent: (() => Error) | null;
}

interface Outcome {
  error: TierkvError | null;
  data: Buffer;
  bytes: number;
}

/** none: not offered, or not wanted · opening · up · broken: will be tried again. */
export type LanesState = "none" | "opening" | "up" | "broken";

export class Lanes {
  readonly #options: LanesOptions;
  readonly #open = new Map<number, (outcome: Outcome) => void>();
  readonly #closing = new AbortController();
  #state: LanesState = "none";
  #id: number | null = null;
  #pauseMs = LANES_PAUSE_MIN_MS;
  #breaks = 0;
  #isRenewing = false;
  #isToldNone = false;
  #onSettled: () => void = () => {};

  constructor(options: LanesOptions) {
    this.#options = options;
  }

  get state(): LanesState {
    return this.#state;
  }

  /** How often they broke, or could not be opened. */
  get breaks(): number {
    return this.#breaks;
  }

  /** Takes up what a hello offers; resolves when it is known whether they are up, or when waiting is no use. */
  async offer({ laneToken }: HelloReply): Promise<void> {
    const { count, address } = this.#options;
    const isIdle = this.#state === "none" || this.#state === "broken";
    if (count === 0 || !isIdle || this.#closing.signal.aborted) return;
    if (laneToken.length === 0) {
      this.#tellNone();
      return;
    }
    this.#state = "opening";
    const settled = new Promise<void>((resolve) => {
      this.#onSettled = resolve;
    });
    try {
      const hear = (request: number, error: string | null, data: Buffer, bytes: number): void => {
        if (this.#id === id) this.#hear(request, error, data, bytes);
      };
      const id = lanesOpen(address, laneToken, count, hear, this.#options.tls);
      this.#id = id;
    } catch (error) {
      this.#broke(toTierkvError(error).message);
      return;
    }
    await Promise.race([settled, quietSleep(LANES_OPEN_WAIT_MS, this.#closing.signal)]);
  }

  /** Bitmap over the packed keys; null when the lanes are of no use. Rejects when the call is given up. */
  async lookup(namespace: Buffer, keys: Buffer, options: RequestOptions): Promise<Buffer | null> {
    const begin = (id: number): number => lanesLookup(id, namespace, keys);
    const outcome = await this.#run(begin, options);
    return outcome === null || outcome.error !== null ? null : outcome.data;
  }

  /** Records straight into slots: ACCEPTED is verified and decoded. Rejects when the call is given up. */
  async fetch(namespace: Buffer, plan: LandingPlan, options: RequestOptions): Promise<Settled> {
    const { arena, fidelity, keys, geometries, leases } = plan;
    const begin = (id: number): number =>
      lanesFetch(id, arena, fidelity, namespace, keys, geometries, leases);
    return settledOf(await this.#run(begin, options), geometries.length);
  }

  /** Records of the native outbox, put-if-absent. Rejects when the call is given up. */
  async store(
    namespace: Buffer,
    keys: Buffer,
    records: Uint32Array,
    options: RequestOptions,
    tenant = 0,
    flushed: number = MADE_NOW,
  ): Promise<Settled> {
    const begin = (id: number): number => lanesStore(id, namespace, keys, records, tenant, flushed);
    return settledOf(await this.#run(begin, options), records.length);
  }

  /** `chunks` MiB of bytes that are no record; null when the lanes are of no use. Rejects when the call is given up. */
  async probe(chunks: number, isToVault: boolean, options: RequestOptions): Promise<Probed | null> {
    const begunMs = nowMs();
    const outcome = await this.#run((id) => lanesProbe(id, chunks, isToVault), options);
    if (outcome === null || outcome.error !== null) return null;
    return { bytes: outcome.bytes, ms: nowMs() - begunMs };
  }

  /** Ends them for good. Idempotent. */
  close(): void {
    this.#closing.abort();
    this.#end();
    this.#state = "none";
    this.#onSettled();
  }

  /** null: not up, or more is open than they take. */
  async #run(begin: (id: number) => number, options: RequestOptions): Promise<Outcome | null> {
    const id = this.#id;
    const { signal, timeoutMs, onProgress } = options;
    if (signal.aborted) throw signal.reason;
    if (this.#state !== "up" || id === null) return null;
    let request: number;
    try {
      request = begin(id);
    } catch (error) {
      this.#options.logger.debug({ err: error }, "a request did not get onto the lanes");
      return null;
    }
    let isLate = false;
    // Lanes that were closed have given it up already.
    const giveUp = (): void => {
      if (this.#id === id) lanesCancel(id, request);
    };
    const timer = setTimeout(() => {
      isLate = true;
      giveUp();
    }, timeoutMs);
    const told = new Progress(onProgress);
    const poll = setInterval(() => told.upTo(lanesProgress(id, request)), LANES_POLL_MS);
    signal.addEventListener("abort", giveUp, { once: true });
    try {
      const outcome = await new Promise<Outcome>((resolve) => this.#open.set(request, resolve));
      if (signal.aborted) throw signal.reason;
      if (isLate && outcome.error !== null) throw options.late();
      if (outcome.error === null || outcome.error.code === "BAD_RECORD") told.end(outcome.bytes);
      this.#account(outcome, options);
      return outcome;
    } finally {
      clearTimeout(timer);
      clearInterval(poll);
      signal.removeEventListener("abort", giveUp);
    }
  }

  /** What failed is tried again elsewhere, while there are tokens for it. */
  #account({ error }: Outcome, { spent }: RequestOptions): void {
    const { retries } = this.#options;
    if (error === null) retries.answered();
    else if (spent !== null && !retries.take()) throw spent();
  }

  #hear(request: number, text: string | null, data: Buffer, bytes: number): void {
    const error = text === null ? null : toTierkvError(new Error(text));
    if (request > 0) {
      const resolve = this.#open.get(request);
      this.#open.delete(request);
      resolve?.({ error, data, bytes });
    } else if (error === null) {
      this.#state = "up";
      this.#pauseMs = LANES_PAUSE_MIN_MS;
      const { label, count, logger } = this.#options;
      logger.debug({ vault: label, lanes: count }, "lanes are up");
      this.#onSettled();
    } else {
      this.#broke(error.message);
    }
  }

  #tellNone(): void {
    if (this.#isToldNone) return;
    this.#isToldNone = true;
    const { label, logger } = this.#options;
    logger.info({ vault: label }, "the vault offers no lanes: records travel over gRPC");
  }

  #broke(reason: string): void {
    const { label, logger } = this.#options;
    const wasTold = this.#state === "opening" && this.#breaks > 0;
    this.#end();
    if (this.#closing.signal.aborted) return;
    this.#breaks += 1;
    this.#state = "broken";
    const words = "lanes are down: records travel over gRPC until they are back";
    if (wasTold) logger.debug({ vault: label, reason }, words);
    else logger.warn({ vault: label, reason }, words);
    this.#onSettled();
    void this.#renewLater();
  }

  #end(): void {
    if (this.#id !== null) lanesClose(this.#id);
    this.#id = null;
    const lost = new TierkvError("LANE_FAILED", { reason: "the lanes were closed" });
    for (const resolve of this.#open.values())
      resolve({ error: lost, data: Buffer.alloc(0), bytes: 0 });
    this.#open.clear();
  }

  /** Until a hello brings them back, or we are closed. */
  async #renewLater(): Promise<void> {
    if (this.#isRenewing) return;
    this.#isRenewing = true;
    const { signal } = this.#closing;
    while (this.#state === "broken" && !signal.aborted) {
      await quietSleep(jitterMs(this.#pauseMs / 2, this.#pauseMs), signal);
      this.#pauseMs = Math.min(this.#pauseMs * 2, LANES_PAUSE_MAX_MS);
      // A vault that does not answer is the breaker's business; a hello that is answered brings the lanes along.
      if (this.#state === "broken" && !signal.aborted) await this.#options.renew().catch(() => {});
    }
    this.#isRenewing = false;
  }
}

function settledOf(outcome: Outcome | null, items: number): Settled {
  const statuses = new Uint8Array(items).fill(ItemStatus.INCOMPLETE);
  if (outcome === null) return { statuses, bytes: 0, reason: null };
  if (outcome.data.length === items) statuses.set(outcome.data);
  const isBad = outcome.error?.code === "BAD_RECORD";
  return {
    statuses,
    bytes: outcome.bytes,
    reason: isBad ? (outcome.error?.message ?? null) : null,
  };
}

/** Tells of bytes as they add up; each once. */
class Progress {
  readonly #tell: (bytes: number) => void;
  #told = 0;

  constructor(tell: (bytes: number) => void) {
    this.#tell = tell;
  }

  upTo(bytes: number | null): void {
    const more = (bytes ?? 0) - this.#told;
    if (more <= 0) return;
    this.#told += more;
    this.#tell(more);
  }

  /** An answer is progress also when no byte came with it. */
  end(bytes: number): void {
    this.#tell(Math.max(0, bytes - this.#told));
  }
}

async function quietSleep(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, signal).catch(() => {});
}
