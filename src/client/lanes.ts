// Owns the lanes of one client to its vault: opened after a hello, one promise per request, opened again when they broke.
import { TierkvError, toTierkvError } from "../errors.ts";
import {
  LANES_AGAIN_MS,
  LANES_BACK_MS,
  LANES_FAILURES_MAX,
  LANES_OPEN_WAIT_MS,
  LANES_PAUSE_MAX_MS,
  LANES_PAUSE_MIN_MS,
  LANES_POLL_MS,
  MADE_NOW,
  RAIL_HOLD_MS,
  RAIL_JOIN_MS,
} from "../limits.ts";
import {
  type LaneRail,
  lanesCancel,
  lanesClose,
  lanesFailedRail,
  lanesMtu,
  lanesFetch,
  lanesLookup,
  lanesOpen,
  lanesProbe,
  lanesProgress,
  lanesStore,
  lanesTake,
} from "../native.ts";
import { jitterMs, nowMs, sleep } from "../time.ts";
import type { HelloReply } from "../wire/messages.ts";
import type { Attempt } from "./attempt.ts";
import type { LanesOptions } from "./lane-options.ts";
import { settledOf } from "./lane-requests.ts";
import type { FetchPlan, Outcome, Probed, Settled } from "./lane-requests.ts";
import { Progress } from "./progress.ts";

const NOTHING = Buffer.alloc(0);

/** none: not tried yet, or not wanted · opening · up · broken: will be tried again. */
export type LanesState = "none" | "opening" | "up" | "broken";

export class Lanes {
  readonly #options: LanesOptions;
  readonly #open = new Map<number, (outcome: Outcome) => void>();
  readonly #closing = new AbortController();
  #state: LanesState = "none";
  #id: number | null = null;
  #pauseMs = LANES_PAUSE_MIN_MS;
  #breaks = 0;
  /** Attempts in a row that ended before the lanes were up. */
  #failures = 0;
  /** When they came up last. */
  #upMs = 0;
  /** Why they are not up. */
  #reason = "they were not opened yet";
  #isRenewing = false;
  readonly #waiting = new Set<() => void>();
  /** Over which they are open. */
  #rails: LaneRail[] = [];
  /** Nothing new is asked on them: they are about to be opened anew. */
  #isHeld = false;
  #isRejoining = false;

  constructor(options: LanesOptions) {
    this.#options = options;
  }

  get state(): LanesState {
    return this.#state;
  }

  /** Ways that they are spread over; 0: they are not up. */
  get over(): number {
    return this.#state === "up" ? this.#rails.length : 0;
  }

  get mtu(): number | null {
    return this.#id === null ? null : lanesMtu(this.#id);
  }

  /** How often they broke, or could not be opened. */
  get breaks(): number {
    return this.#breaks;
  }

  /** Opening them has failed again and again, while the vault answers: no record gets through. */
  get isUnreachable(): boolean {
    return this.#failures >= LANES_FAILURES_MAX;
  }

  /** Takes up what a hello offers; resolves when it is known whether they are up, or when waiting is no use. */
  async offer({ laneToken }: HelloReply): Promise<void> {
    const { count, down, up, tls } = this.#options;
    const isIdle = this.#state === "none" || this.#state === "broken";
    if (count === 0 || !isIdle || this.#closing.signal.aborted) return;
    this.#state = "opening";
    const settled = this.#changed();
    try {
      const hear = (request: number, error: string | null, data: Buffer, bytes: number): void => {
        if (this.#id === id) this.#hear(request, error, data, bytes);
      };
      this.#rails = this.#options.rails();
      const lanes = this.#rails.length > 1 ? Math.max(count, 2 * this.#rails.length) : count;
      const id = lanesOpen(this.#rails, laneToken, lanes, down, up, hear, tls);
      this.#id = id;
    } catch (error) {
      this.#broke(toTierkvError(error).message);
      return;
    }
    await Promise.race([settled, quietSleep(LANES_OPEN_WAIT_MS, this.#closing.signal)]);
  }

  /** Bitmap over the packed keys; null when the lanes are of no use now. Rejects when the call is given up. */
  async lookup(namespace: Buffer, keys: Buffer, attempt: Attempt): Promise<Buffer | null> {
    const id = this.#upId;
    if (id === null) return null;
    const outcome = await this.#ask(id, () => lanesLookup(id, namespace, keys), attempt);
    if (outcome?.error === null) return outcome.data;
    // Which way broke is about to be heard, and then calls take another.
    if (this.#rails.length > 1) await this.#waitUntil(nowMs() + LANES_AGAIN_MS, attempt.signal);
    return null;
  }

  /**
   * Records straight into slots: ACCEPTED is verified and decoded. Rejects when the call is given up, or there are no lanes.
   * `onProgress`: so many bytes have arrived since the last time.
   */
  async fetch(
    namespace: Buffer,
    plan: FetchPlan,
    attempt: Attempt,
    onProgress?: (bytes: number) => void,
  ): Promise<Settled> {
    const { arena, fidelity, keys, geometries, leases } = plan;
    const begin = (id: number): number =>
      lanesFetch(id, arena, fidelity, namespace, keys, geometries, leases);
    return settledOf(await this.#run(begin, attempt, onProgress), geometries.length);
  }

  /** Records as they are, into ids that were reserved in the native outbox. Rejects when the call is given up, or there are no lanes. */
  async take(
    namespace: Buffer,
    keys: Buffer,
    records: readonly number[],
    attempt: Attempt,
  ): Promise<Settled> {
    const begin = (id: number): number => lanesTake(id, namespace, keys, [...records]);
    return settledOf(await this.#run(begin, attempt), records.length);
  }

  /** Records of the native outbox, put-if-absent. Rejects when the call is given up, or there are no lanes. */
  async store(
    namespace: Buffer,
    keys: Buffer,
    records: Uint32Array,
    attempt: Attempt,
    tenant = 0,
    flushed: number = MADE_NOW,
  ): Promise<Settled> {
    const begin = (id: number): number => lanesStore(id, namespace, keys, records, tenant, flushed);
    return settledOf(await this.#run(begin, attempt), records.length);
  }

  /** `chunks` MiB of bytes that are no record. Rejects when the call is given up, or there are no lanes. */
  async probe(chunks: number, isToVault: boolean, attempt: Attempt): Promise<Probed> {
    const begunMs = nowMs();
    const { error, bytes } = await this.#run((id) => lanesProbe(id, chunks, isToVault), attempt);
    if (error !== null) throw attempt.refused(error.message);
    return { bytes, ms: nowMs() - begunMs };
  }

  /** Opens them over the ways that there are now, once nothing is under way on them. */
  async rejoin(): Promise<void> {
    if (this.#isRejoining) return;
    this.#isRejoining = true;
    const { signal } = this.#closing;
    const isBusy = (): boolean =>
      !signal.aborted &&
      (this.#state === "opening" || (this.#state === "up" && this.#open.size > 0));
    while (isBusy()) {
      const endMs = nowMs() + (this.#isHeld ? RAIL_HOLD_MS : RAIL_JOIN_MS);
      while (isBusy() && nowMs() < endMs) await this.#waitUntil(endMs, signal);
      this.#isHeld = !this.#isHeld;
    }
    this.#isRejoining = this.#isHeld = false;
    if (this.#state === "up" && !signal.aborted) {
      this.#end();
      this.#state = "broken";
      void this.#renewLater(0);
    }
    this.#tell();
  }

  /** Ends them for good. Idempotent. */
  close(): void {
    this.#closing.abort();
    this.#end();
    this.#state = "none";
    this.#tell();
  }

  /** A request on lanes that are up, or come up soon. An outcome with an error: they broke. */
  async #run(
    begin: (id: number) => number,
    attempt: Attempt,
    onProgress?: (bytes: number) => void,
  ): Promise<Outcome> {
    for (;;) {
      const id = this.#freeId ?? (await this.#ready(attempt));
      const outcome = await this.#ask(id, () => begin(id), attempt, onProgress);
      const refusal = outcome?.error?.code === "NO_MEMORY" ? outcome.error : null;
      if (refusal !== null) throw attempt.refused(refusal.message);
      if (outcome !== null) return outcome;
      // They have ended, and that is about to be heard.
      await this.#waitUntil(nowMs() + attempt.leftMs, attempt.signal);
    }
  }

  get #upId(): number | null {
    return this.#state === "up" ? this.#id : null;
  }

  /** Of lanes that something new may be asked on. */
  get #freeId(): number | null {
    return this.#isHeld ? null : this.#upId;
  }

  /** Lanes that are up. What broke just now is back soon; what cannot be opened again and again is not waited for. */
  async #ready(attempt: Attempt): Promise<number> {
    const backMs = nowMs() + LANES_BACK_MS;
    for (;;) {
      attempt.throwIfGivenUp();
      if (this.#freeId !== null) return this.#freeId;
      const isHopeless = this.#options.count === 0 || this.isUnreachable || nowMs() > backMs;
      if (isHopeless) throw attempt.unreachable(this.#reason);
      if (attempt.leftMs === 0) throw attempt.late();
      await this.#waitUntil(Math.min(backMs, nowMs() + attempt.leftMs), attempt.signal);
    }
  }

  /** The next change of state, or the end of the wait. */
  async #waitUntil(endMs: number, signal: AbortSignal): Promise<void> {
    const over = new AbortController();
    const ms = Math.max(1, endMs - nowMs() + 1);
    const any = AbortSignal.any([signal, over.signal]);
    await Promise.race([this.#changed(), quietSleep(ms, any)]);
    over.abort();
  }

  #changed(): Promise<void> {
    return new Promise((resolve) => this.#waiting.add(resolve));
  }

  #tell(): void {
    for (const resolve of this.#waiting) resolve();
    this.#waiting.clear();
  }

  /** null: the lanes have ended. An outcome with NO_MEMORY: one side takes no more. Rejects when it is given up, or failed once too often. */
  async #ask(
    id: number,
    begin: () => number,
    attempt: Attempt,
    onProgress?: (bytes: number) => void,
  ): Promise<Outcome | null> {
    attempt.throwIfGivenUp();
    let request: number;
    try {
      request = begin();
    } catch (error) {
      const { code, message } = toTierkvError(error);
      if (code === "LANE_FAILED" || code === "UNKNOWN_ID") return null;
      return { error: new TierkvError("NO_MEMORY", { reason: message }), data: NOTHING, bytes: 0 };
    }
    let isLate = false;
    // Lanes that were closed have given it up already.
    const giveUp = (): void => {
      if (this.#id === id) lanesCancel(id, request);
    };
    const told = new Progress((bytes) => {
      attempt.hasProgress = true;
      onProgress?.(bytes);
    });
    const look = (): void => {
      if (this.#id === id) told.upTo(lanesProgress(id, request));
    };
    const timer = setTimeout(() => {
      isLate = true;
      look();
      giveUp();
    }, attempt.leftMs);
    const poll = onProgress === undefined ? undefined : setInterval(look, LANES_POLL_MS);
    attempt.onGivenUp(giveUp);
    try {
      const outcome = await new Promise<Outcome>((resolve) => this.#open.set(request, resolve));
      attempt.throwIfGivenUp();
      if (isLate && outcome.error !== null) throw attempt.late();
      if (outcome.error === null || outcome.error.code === "BAD_RECORD") told.end(outcome.bytes);
      this.#account(outcome, attempt);
      return outcome;
    } finally {
      clearTimeout(timer);
      clearInterval(poll);
      attempt.offGivenUp(giveUp);
    }
  }

  /** What failed is tried again, while there are tokens for it. */
  #account({ error }: Outcome, attempt: Attempt): void {
    const { retries } = this.#options;
    if (error?.code !== "LANE_FAILED") retries.answered();
    else if (!retries.take()) throw attempt.spent();
  }

  #hear(request: number, text: string | null, data: Buffer, bytes: number): void {
    const error = text === null ? null : toTierkvError(new Error(text));
    if (request > 0) {
      const resolve = this.#open.get(request);
      this.#open.delete(request);
      resolve?.({ error, data, bytes });
      if (this.#isRejoining) this.#tell();
    } else if (error === null) {
      this.#state = "up";
      this.#upMs = nowMs();
      this.#failures = 0;
      this.#pauseMs = LANES_PAUSE_MIN_MS;
      const { label, count, logger } = this.#options;
      logger.debug({ vault: label, lanes: count }, "lanes are up");
      this.#tell();
    } else {
      this.#broke(error.message);
    }
  }

  #broke(reason: string): void {
    const { label, logger } = this.#options;
    const wasUp = this.#state === "up";
    const wasTold = !wasUp && this.#breaks > 0;
    const failed = this.#id === null ? null : lanesFailedRail(this.#id);
    const rail = failed === null ? undefined : this.#rails[failed];
    this.#end();
    if (this.#closing.signal.aborted) return;
    this.#breaks += 1;
    this.#reason = reason;
    if (!wasUp && rail === undefined) this.#failures += 1;
    this.#state = "broken";
    if (rail !== undefined) this.#options.onRailFailed(rail, reason);
    const words = "lanes are down: no record travels until they are back";
    if (wasTold) logger.debug({ vault: label, reason }, words);
    else logger.warn({ vault: label, reason }, words);
    this.#tell();
    // What held for a while is opened again at once; what breaks again and again, or never opens, is not.
    const isSoon = wasUp && nowMs() - this.#upMs > LANES_PAUSE_MIN_MS;
    const soonMs = isSoon ? LANES_AGAIN_MS : this.#pauseMs;
    void this.#renewLater(rail === undefined ? soonMs : 0);
  }

  #end(): void {
    if (this.#id !== null) lanesClose(this.#id);
    this.#id = null;
    const lost = new TierkvError("LANE_FAILED", { reason: "the lanes were closed" });
    for (const resolve of this.#open.values()) resolve({ error: lost, data: NOTHING, bytes: 0 });
    this.#open.clear();
  }

  /** Until a hello brings them back, or we are closed. */
  async #renewLater(firstMs: number): Promise<void> {
    if (this.#isRenewing) return;
    this.#isRenewing = true;
    const { signal } = this.#closing;
    let ms = firstMs;
    while (this.#state === "broken" && !signal.aborted) {
      await quietSleep(jitterMs(ms / 2, ms), signal);
      ms = this.#pauseMs;
      this.#pauseMs = Math.min(this.#pauseMs * 2, LANES_PAUSE_MAX_MS);
      // A vault that does not answer is the breaker's business; a hello that is answered brings the lanes along.
      if (this.#state === "broken" && !signal.aborted) await this.#options.renew().catch(() => {});
    }
    this.#isRenewing = false;
  }
}

async function quietSleep(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, signal).catch(() => {});
}
