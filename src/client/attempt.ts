// Owns one call to a vault under way: what is left of its time, what gives it up, and the errors that name it.
import { setMaxListeners } from "node:events";
import { TierkvError } from "../errors.ts";
import { nowMs } from "../time.ts";
import type { CallContext } from "../wire/status.ts";
import type { CallOptions, VaultChannel } from "./channel.ts";

/** Made for every call: what few of them need is made when it is asked for. */
export class Attempt {
  readonly context: CallContext;
  readonly #channel: () => VaultChannel;
  readonly #endMs: number;
  readonly #listeners = new Set<() => void>();
  #controller: AbortController | null = null;
  #reason: unknown = undefined;
  /** It was given up. */
  isGivenUp = false;
  /** The vault answered something: if time runs out now, the vault is slow or the work large, but it is not down. */
  hasProgress = false;

  /** `channel`: the one that calls go over, which changes while they are under way. */
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

  /** Fires when it is given up. */
  get signal(): AbortSignal {
    if (this.#controller === null) {
      this.#controller = new AbortController();
      // A call of a long prompt has many parts, each of which listens.
      setMaxListeners(0, this.#controller.signal);
      if (this.isGivenUp) this.#controller.abort(this.#reason);
    }
    return this.#controller.signal;
  }

  /** For one RPC of this call. */
  readonly options = (): CallOptions => ({ timeoutMs: this.leftMs, signal: this.signal });

  giveUp(reason: unknown): void {
    if (this.isGivenUp) return;
    this.isGivenUp = true;
    this.#reason = reason;
    this.#controller?.abort(reason);
    for (const listener of this.#listeners) listener();
  }

  throwIfGivenUp(): void {
    // As an AbortController does without a reason.
    if (this.isGivenUp) throw this.#reason ?? this.signal.reason;
  }

  /** `listener` hears of it as `signal` does. */
  onGivenUp(listener: () => void): void {
    this.#listeners.add(listener);
  }

  offGivenUp(listener: () => void): void {
    this.#listeners.delete(listener);
  }

  /** Time ran out. */
  late(): TierkvError {
    return new TierkvError("VAULT_DEADLINE", { ...this.context });
  }

  /** It failed, and nothing may be tried a second time for now. */
  spent(): TierkvError {
    return this.refused("too much failed lately for a second try");
  }

  /** The vault took the request, and refuses it. */
  refused(reason: string): TierkvError {
    return new TierkvError("VAULT_BUSY", { ...this.context, reason });
  }

  /** There are no lanes. */
  unreachable(reason: string): TierkvError {
    return new TierkvError("LANES_UNREACHABLE", { ...this.context, reason });
  }

  /** The vault breaks the protocol. */
  broken(reason: string): TierkvError {
    return new TierkvError("VAULT_BROKEN", { ...this.context, reason });
  }
}
