// Owns one running call to a vault: its remaining time, its cancellation, and its errors.
import { setMaxListeners } from "node:events";
import { TierkvError } from "../../base/errors.ts";
import { clearAlarm, nowMs, setAlarm } from "../../base/time.ts";
import type { Alarm } from "../../base/time.ts";
import type { CallContext } from "../../wire/status.ts";
import type { CallOptions, VaultChannel } from "./channel.ts";

/** Made for every call, so rarely used parts are created on demand. */
export class Attempt {
  readonly context: CallContext;
  readonly #channel: () => VaultChannel;
  readonly #endMs: number;
  #listeners: Set<() => void> | null = null;
  #controller: AbortController | null = null;
  #reason: unknown = undefined;
  /** True once the call was given up. */
  isGivenUp = false;
  /** True once the vault sent something: a later time-out means slow or large work, not a vault that is down. */
  hasProgress = false;

  #beginning: Alarm | undefined;

  /** `channel` returns the present channel, which may change during a call. */
  constructor(channel: () => VaultChannel, context: CallContext) {
    this.#channel = channel;
    this.context = context;
    this.#endMs = nowMs() + context.timeoutMs;
  }

  get channel(): VaultChannel {
    return this.#channel();
  }

  get leftMs(): number {
    return Math.max(0, this.#endMs - nowMs());
  }

  /** Fires when the call is given up. */
  get signal(): AbortSignal {
    if (this.#controller === null) {
      this.#controller = new AbortController();
      // A call for a long prompt has many parts, and each listens.
      setMaxListeners(0, this.#controller.signal);
      if (this.isGivenUp) this.#controller.abort(this.#reason);
    }
    return this.#controller.signal;
  }

  /** Options for one RPC of this call. */
  readonly options = (): CallOptions => ({ timeoutMs: this.leftMs, signal: this.signal });

  giveUp(reason: unknown): void {
    if (this.isGivenUp) return;
    this.isGivenUp = true;
    this.#reason = reason;
    this.#controller?.abort(reason);
    for (const listener of this.#listeners ?? []) listener();
  }

  throwIfGivenUp(): void {
    // Without a reason, as an AbortController does.
    if (this.isGivenUp) throw this.#reason ?? this.signal.reason;
  }

  /** Gives the call up as stalled unless `begun` is called in time. */
  mustBegin(stallMs: number): void {
    this.begun();
    this.#beginning = setAlarm(stallMs, () => this.giveUp(this.stalled(stallMs)));
  }

  /** Notes that its request is under way, or over. */
  begun(): void {
    clearAlarm(this.#beginning);
    this.#beginning = undefined;
  }

  /** Calls `listener` when the call is given up, as `signal` would. */
  onGivenUp(listener: () => void): void {
    (this.#listeners ??= new Set()).add(listener);
  }

  offGivenUp(listener: () => void): void {
    this.#listeners?.delete(listener);
  }

  /** Error for a call that ran out of time. */
  late(): TierkvError {
    return new TierkvError("VAULT_DEADLINE", { ...this.context });
  }

  /** Error for a call without a byte for too long. */
  stalled(stallMs: number): TierkvError {
    const { name, address } = this.context;
    const reason = `${name} vault at ${address} sent no byte for ${stallMs} ms`;
    return new TierkvError("FETCH_STALLED", { reason });
  }

  /** Error for a failed call when no retry is allowed at present. */
  spent(): TierkvError {
    return this.refused("too many calls failed lately to try again");
  }

  /** Error for a request that the vault refuses. */
  refused(reason: string): TierkvError {
    return new TierkvError("VAULT_BUSY", { ...this.context, reason });
  }

  /** Error for a call without lanes. */
  unreachable(reason: string): TierkvError {
    return new TierkvError("LANES_UNREACHABLE", { ...this.context, reason });
  }

  /** Error for an answer that breaks the protocol. */
  broken(reason: string): TierkvError {
    return new TierkvError("VAULT_BROKEN", { ...this.context, reason });
  }
}
