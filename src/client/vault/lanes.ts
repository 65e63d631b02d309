// Owns one client's lanes to its vault: opened after a hello, one promise per request, reopened after a break.
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import {
  LANES_AGAIN_MS,
  LANES_BACK_MS,
  LANES_FAILURES_MAX,
  LANES_OPEN_WAIT_MS,
  LANES_PAUSE_MAX_MS,
  LANES_PAUSE_MIN_MS,
  MADE_NOW,
  RAIL_HOLD_MS,
  RAIL_JOIN_MS,
} from "../../base/limits/general.ts";
import {
  lanesCancel,
  lanesClose,
  lanesFailedRails,
  lanesLend,
  lanesMtu,
  lanesFetch,
  lanesLookup,
  lanesOpen,
  lanesProbe,
  lanesProgress,
  lanesStore,
  lanesTake,
} from "../../base/native.ts";
import type { LaneRail, LanesId } from "../../base/native.ts";
import { clearAlarm, jitterMs, nowMs, setAlarm, sleep } from "../../base/time.ts";
import type { HelloReply } from "../../wire/messages.ts";
import type { FetchWindow, Purpose } from "../source.ts";
import type { Attempt } from "./attempt.ts";
import type { LanesOptions } from "./lane-options.ts";
import { idOf, reasonOf, stateOf } from "./lane-phase.ts";
import type { Down, LanesState, Phase, Rejoin } from "./lane-phase.ts";
import { settledOf } from "./lane-requests.ts";
import type { LanesSettled, Outcome, Probed } from "./lane-requests.ts";

const NOTHING = Buffer.alloc(0);

export class Lanes {
  readonly #options: LanesOptions;
  readonly #open = new Map<number, (outcome: Outcome) => void>();
  readonly #closing = new AbortController();
  readonly #waiting = new Set<() => void>();
  #phase: Phase = { kind: "none", reason: "they were not opened yet" };
  #rejoin: Rejoin = "no";
  /** Pause before the attempt after next. */
  #pauseMs = LANES_PAUSE_MIN_MS;
  #breaks = 0;
  /** True for a vault that makes spans of requests with a context. */
  #isTraced = false;
  /** Consecutive attempts that ended before the lanes were up. */
  #failures = 0;

  constructor(options: LanesOptions) {
    this.#options = options;
  }

  get state(): LanesState {
    return stateOf(this.#phase);
  }

  /** Number of rails in use; 0: the lanes are not up. */
  get over(): number {
    return this.#phase.kind === "up" ? this.#phase.rails.length : 0;
  }

  /** True where both sides read records where they stand, in each other's memory. */
  get isLent(): boolean {
    return this.#phase.kind === "up" && lanesLend(this.#phase.id).every(Boolean);
  }

  get mtu(): number | null {
    const id = idOf(this.#phase);
    return id === null ? null : lanesMtu(id);
  }

  /** Number of breaks and failed attempts. */
  get breaks(): number {
    return this.#breaks;
  }

  /** True when opening failed repeatedly although the vault answers, so that no record gets through. */
  get isUnreachable(): boolean {
    return this.#failures >= LANES_FAILURES_MAX;
  }

  /** Opens the lanes that a hello offers; resolves when they are up or have failed, or the wait is over. */
  async offer({ laneToken, traced }: HelloReply): Promise<void> {
    this.#isTraced = traced;
    const { count, down, up, tls } = this.#options;
    const after = this.#phase;
    if (count === 0 || (after.kind !== "none" && after.kind !== "broken")) return;
    const rails = this.#options.rails();
    const lanes = rails.length > 1 ? Math.max(count, 2 * rails.length) : count;
    const onEvent = (request: number, error: string | null, data: Buffer, bytes: number): void => {
      if (idOf(this.#phase) === id) this.#onEvent(request, error, data, bytes);
    };
    let id: LanesId;
    try {
      id = lanesOpen(rails, laneToken, lanes, down, up, onEvent, tls());
    } catch (error) {
      this.#broke(toTierkvError(error).message);
      return;
    }
    this.#become({ kind: "opening", id, rails, after });
    await Promise.race([this.#changed(), quietSleep(LANES_OPEN_WAIT_MS, this.#closing.signal)]);
  }

  /** Returns a bitmap over the packed keys, or null when the lanes are unusable now. Rejects when the call is given up. */
  async lookup(
    namespace: Buffer,
    keys: Buffer,
    attempt: Attempt,
    { trace, isCounted }: Purpose,
  ): Promise<Buffer | null> {
    if (this.#phase.kind !== "up") return null;
    const { id, rails } = this.#phase;
    const begin = (): number => lanesLookup(id, namespace, keys, isCounted, this.#told(trace));
    const outcome = await this.#ask(id, begin, attempt);
    if (outcome?.error === null) return outcome.data;
    // The broken rail is about to be reported; then calls take another.
    if (rails.length > 1) await this.#waitUntil(nowMs() + LANES_AGAIN_MS, attempt.signal);
    return null;
  }

  /**
   * Fetches records straight into slots; ACCEPTED means verified and decoded. Rejects when the call is given up or there are no
   * lanes, and with FETCH_STALLED after `stallMs` without a byte (undefined: never).
   */
  fetch(
    namespace: Buffer,
    window: FetchWindow,
    attempt: Attempt,
    stallMs: number | undefined,
  ): Promise<LanesSettled> {
    const { arena, fidelity, keys, geometries, leases } = window;
    const trace = this.#told(window.trace ?? null);
    const most = stallMs === undefined ? {} : { stallMs: Math.ceil(stallMs) };
    const how = { arena, fidelity, ...most };
    const begin = (id: LanesId): number =>
      lanesFetch(id, how, namespace, keys, geometries, leases, trace);
    return this.#run(begin, attempt).then((outcome) => {
      if (outcome.error?.code === "FETCH_STALLED") throw attempt.stalled(stallMs ?? 0);
      return settledOf(outcome, geometries.length);
    });
  }

  /** Fetches records undecoded into reserved ids of the native outbox. Rejects when the call is given up or there are no lanes. */
  async take(
    namespace: Buffer,
    keys: Buffer,
    records: readonly number[],
    attempt: Attempt,
  ): Promise<LanesSettled> {
    const begin = (id: LanesId): number => lanesTake(id, namespace, keys, [...records]);
    return settledOf(await this.#run(begin, attempt), records.length);
  }

  /** Stores records of the native outbox, put-if-absent. Rejects when the call is given up or there are no lanes. */
  async store(
    namespace: Buffer,
    keys: Buffer,
    records: Uint32Array,
    attempt: Attempt,
    tenant = 0,
    flushed: number = MADE_NOW,
    trace: Buffer | null = null,
  ): Promise<LanesSettled> {
    const begin = (id: LanesId): number =>
      lanesStore(id, namespace, keys, records, tenant, flushed, this.#told(trace));
    return settledOf(await this.#run(begin, attempt), records.length);
  }

  /** Moves `chunks` MiB that are no record. Rejects when the call is given up or there are no lanes. */
  async probe(chunks: number, isToVault: boolean, attempt: Attempt): Promise<Probed> {
    const begunMs = nowMs();
    const { error, bytes } = await this.#run((id) => lanesProbe(id, chunks, isToVault), attempt);
    if (error !== null) throw attempt.refused(error.message);
    return { bytes, ms: nowMs() - begunMs };
  }

  /** Reopens the lanes over the present rails, once no request is under way. */
  async rejoin(): Promise<void> {
    if (this.#rejoin !== "no") return;
    this.#rejoin = "waiting";
    const { signal } = this.#closing;
    const isBusy = (): boolean =>
      this.#phase.kind === "opening" || (this.#phase.kind === "up" && this.#open.size > 0);
    while (isBusy()) {
      const endMs = nowMs() + (this.#rejoin === "holding" ? RAIL_HOLD_MS : RAIL_JOIN_MS);
      while (isBusy() && nowMs() < endMs) await this.#waitUntil(endMs, signal);
      this.#rejoin = this.#rejoin === "holding" ? "waiting" : "holding";
    }
    this.#rejoin = "no";
    if (this.#phase.kind === "up") this.#breakOff("they are opened over more ways", 0);
    else this.#notify();
  }

  /** Closes the lanes for good. Idempotent. */
  close(): void {
    this.#closing.abort();
    this.#become({ kind: "closed", reason: "the client was closed" });
  }

  /** Omits the context for a vault without spans, because an older one would refuse the frame. */
  #told(trace: Buffer | null): Buffer | null {
    return this.#isTraced ? trace : null;
  }

  /** Runs a request on lanes that are up, or come up soon. An outcome with an error means that they broke. */
  async #run(begin: (id: LanesId) => number, attempt: Attempt): Promise<Outcome> {
    for (;;) {
      const id = this.#freeId ?? (await this.#ready(attempt));
      const outcome = await this.#ask(id, () => begin(id), attempt);
      const refusal = outcome?.error?.code === "NO_MEMORY" ? outcome.error : null;
      if (refusal !== null) throw attempt.refused(refusal.message);
      if (outcome !== null) return outcome;
      // The lanes have ended, which is about to be reported.
      await this.#waitUntil(nowMs() + attempt.leftMs, attempt.signal);
    }
  }

  /** Id of lanes that take new requests; null: none do. */
  get #freeId(): LanesId | null {
    return this.#phase.kind === "up" && this.#rejoin !== "holding" ? this.#phase.id : null;
  }

  /** Waits for lanes that are up: briefly after a break, and not at all when they cannot be opened. */
  async #ready(attempt: Attempt): Promise<LanesId> {
    const backMs = nowMs() + LANES_BACK_MS;
    for (;;) {
      attempt.throwIfGivenUp();
      if (this.#freeId !== null) return this.#freeId;
      const isHopeless = this.#options.count === 0 || this.isUnreachable || nowMs() > backMs;
      if (isHopeless) throw attempt.unreachable(reasonOf(this.#phase));
      if (attempt.leftMs === 0) throw attempt.late();
      await this.#waitUntil(Math.min(backMs, nowMs() + attempt.leftMs), attempt.signal);
    }
  }

  /** Resolves on the next change of state, or when the wait is over. */
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

  #notify(): void {
    for (const resolve of this.#waiting) resolve();
    this.#waiting.clear();
  }

  /** Runs one request. null: the lanes have ended; NO_MEMORY: one side takes no more. Rejects when given up, or out of retries. */
  #ask(id: LanesId, begin: () => number, attempt: Attempt): Promise<Outcome | null> {
    attempt.throwIfGivenUp();
    let request: number;
    try {
      request = begin();
    } catch (error) {
      const { code, message } = toTierkvError(error);
      if (code === "LANE_FAILED" || code === "UNKNOWN_ID") return Promise.resolve(null);
      const refusal = new TierkvError("NO_MEMORY", { reason: message });
      return Promise.resolve({ error: refusal, data: NOTHING, bytes: 0 });
    }
    // From here on the core watches its progress.
    attempt.begun();
    let isLate = false;
    // Closed lanes have given the request up already.
    const giveUp = (): void => {
      if (idOf(this.#phase) === id) lanesCancel(id, request);
    };
    const alarm = setAlarm(attempt.leftMs, () => {
      isLate = true;
      const bytes = idOf(this.#phase) === id ? lanesProgress(id, request) : null;
      if (bytes !== null && bytes > 0) attempt.hasProgress = true;
      giveUp();
    });
    attempt.onGivenUp(giveUp);
    return new Promise<Outcome>((resolve) => this.#open.set(request, resolve)).then((outcome) => {
      clearAlarm(alarm);
      attempt.offGivenUp(giveUp);
      attempt.throwIfGivenUp();
      if (isLate && outcome.error !== null) throw attempt.late();
      if (outcome.error === null || outcome.error.code === "BAD_RECORD") attempt.hasProgress = true;
      this.#account(outcome, attempt);
      return outcome;
    });
  }

  /** Takes a retry token for a failure, and returns tokens for an answer. */
  #account({ error }: Outcome, attempt: Attempt): void {
    const { retries } = this.#options;
    if (error?.code !== "LANE_FAILED") retries.answered();
    else if (!retries.take()) throw attempt.spent();
  }

  #onEvent(request: number, text: string | null, data: Buffer, bytes: number): void {
    const error = text === null ? null : toTierkvError(new Error(text));
    if (request > 0) {
      const resolve = this.#open.get(request);
      this.#open.delete(request);
      resolve?.({ error, data, bytes });
      if (this.#rejoin !== "no") this.#notify();
    } else if (error !== null) {
      this.#broke(error.message);
    } else if (this.#phase.kind === "opening") {
      const { id, rails } = this.#phase;
      this.#failures = 0;
      this.#pauseMs = LANES_PAUSE_MIN_MS;
      const { label, count, logger } = this.#options;
      logger.debug({ vault: label, lanes: count }, "lanes are up");
      this.#become({ kind: "up", id, rails, sinceMs: nowMs() });
    }
  }

  #broke(reason: string): void {
    const { label, logger, onRailsFailed } = this.#options;
    const phase = this.#phase;
    const isUp = phase.kind === "up";
    const isSaid = !isUp && this.#breaks > 0;
    const rails = failedRails(phase);
    this.#breaks += 1;
    if (!isUp && rails.length === 0) this.#failures += 1;
    const words = "lanes are down: no record travels until they are back";
    if (isSaid) logger.debug({ vault: label, reason }, words);
    else logger.warn({ vault: label, reason }, words);
    // Lanes that held for a while are reopened at once; others wait longer each time.
    const hasHeld = isUp && nowMs() - phase.sinceMs > LANES_PAUSE_MIN_MS;
    const isRetry = phase.kind === "opening" && phase.after.kind === "broken";
    const isElsewhere = rails.length > 0 && !isRetry;
    this.#breakOff(reason, isElsewhere ? 0 : hasHeld ? LANES_AGAIN_MS : this.#nextPause());
    if (rails.length > 0) onRailsFailed(rails, reason);
  }

  /** Marks the lanes as broken; they are tried again after `pauseMs`. */
  #breakOff(reason: string, pauseMs: number): void {
    const broken: Down = { kind: "broken", reason };
    this.#become(broken);
    void this.#renewAfter(pauseMs, broken);
  }

  /** Changes the phase, in this place only. Replaced connections are closed, and their requests end. */
  #become(next: Phase): void {
    const before = this.#phase;
    this.#phase = next;
    const id = idOf(before);
    if (id !== null && idOf(next) !== id) {
      lanesClose(id);
      const lost = new TierkvError("LANE_FAILED", { reason: "the lanes were closed" });
      for (const resolve of this.#open.values()) resolve({ error: lost, data: NOTHING, bytes: 0 });
      this.#open.clear();
    }
    this.#notify();
  }

  /** Says hello until the lanes are back, break again, or the client is closed. */
  async #renewAfter(pauseMs: number, broken: Down): Promise<void> {
    let ms = pauseMs;
    while (this.#phase === broken) {
      await quietSleep(jitterMs(ms / 2, ms), this.#closing.signal);
      // A silent vault is left to the breaker; an answered hello reopens the lanes.
      if (this.#phase === broken) await this.#options.renew().catch(() => {});
      if (this.#phase === broken) ms = this.#nextPause();
    }
  }

  /** Returns a pause twice as long as the last, until the lanes come up. */
  #nextPause(): number {
    const ms = this.#pauseMs;
    this.#pauseMs = Math.min(ms * 2, LANES_PAUSE_MAX_MS);
    return ms;
  }
}

/** Returns the rails that made the lanes break, where known. */
function failedRails(phase: Phase): LaneRail[] {
  if (!("id" in phase)) return [];
  return lanesFailedRails(phase.id).flatMap((number) => phase.rails[number] ?? []);
}

async function quietSleep(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, signal).catch(() => {});
}
