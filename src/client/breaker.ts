// Owns the circuit breaker of one vault: when it counts as down, and the jittered probing that brings it back.
import type { TierkvError } from "../errors.ts";
import { toTierkvError } from "../errors.ts";
import { BREAKER_FAILURES, PROBE_MAX_MS, PROBE_MIN_MS } from "../limits.ts";
import { jitterMs, sleep } from "../time.ts";

export type VaultState = "unknown" | "up" | "down";

export interface BreakerOptions {
  /** Resolves when the vault answers. Must be bounded. */
  probe(): Promise<void>;
  onChange(state: VaultState, reason: string): void;
}

export class Breaker {
  readonly #options: BreakerOptions;
  readonly #closing = new AbortController();
  #state: VaultState = "unknown";
  #failures = 0;
  #reason = "";

  constructor(options: BreakerOptions) {
    this.#options = options;
  }

  get state(): VaultState {
    return this.#state;
  }

  /** Nobody is to ask the vault. */
  get isOpen(): boolean {
    return this.#state === "down";
  }

  /** Why it is down: the last failure in words. */
  get reason(): string {
    return this.#reason;
  }

  succeeded(): void {
    this.#failures = 0;
    this.#become("up", "");
  }

  failed(error: TierkvError): void {
    this.#failures += 1;
    if (this.#failures < BREAKER_FAILURES || this.isOpen) return;
    this.#become("down", error.message);
    // The loop ends by itself: on the first answer, or on close.
    void this.#probeUntilUp();
  }

  close(): void {
    this.#closing.abort();
  }

  #become(state: VaultState, reason: string): void {
    if (this.#state === state || this.#closing.signal.aborted) return;
    this.#state = state;
    this.#reason = reason;
    this.#options.onChange(state, reason);
  }

  async #probeUntilUp(): Promise<void> {
    const { signal } = this.#closing;
    while (this.#state === "down" && !signal.aborted) {
      try {
        await sleep(jitterMs(PROBE_MIN_MS, PROBE_MAX_MS), signal);
        await this.#options.probe();
        this.succeeded();
      } catch (error) {
        this.#reason = toTierkvError(error).message;
      }
    }
  }
}
