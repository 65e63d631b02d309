// Owns the circuit breaker of one vault: when it counts as down, and the jittered probing that brings it back.
import type { TierkvError } from "../base/errors.ts";
import { toTierkvError } from "../base/errors.ts";
import { BREAKER_FAILURES, PROBE_MAX_MS, PROBE_MIN_MS } from "../base/limits/general.ts";
import { jitterMs, sleep } from "../base/time.ts";

export type VaultState = "unknown" | "up" | "down";

/** Phase down lasts until a probe succeeds; `reason`: the last failure in words. */
type Phase =
  | { readonly kind: "unknown" | "up"; failures: number }
  | { readonly kind: "down"; reason: string }
  | { readonly kind: "closed"; readonly was: VaultState };

export interface BreakerOptions {
  /** Resolves when the vault answers. Must be bounded. */
  probe(): Promise<void>;
  onChange(state: VaultState, reason: string): void;
}

export class Breaker {
  readonly #options: BreakerOptions;
  readonly #closing = new AbortController();
  #phase: Phase = { kind: "unknown", failures: 0 };

  constructor(options: BreakerOptions) {
    this.#options = options;
  }

  get state(): VaultState {
    return this.#phase.kind === "closed" ? this.#phase.was : this.#phase.kind;
  }

  /** True while calls must not be made. */
  get isOpen(): boolean {
    return this.state === "down";
  }

  /** Reason for phase down; empty otherwise. */
  get reason(): string {
    return this.#phase.kind === "down" ? this.#phase.reason : "";
  }

  succeeded(): void {
    if (this.#phase.kind === "up") this.#phase.failures = 0;
    else this.#become({ kind: "up", failures: 0 }, "");
  }

  failed(error: TierkvError): void {
    if (this.#phase.kind === "down" || this.#phase.kind === "closed") return;
    this.#phase.failures += 1;
    if (this.#phase.failures < BREAKER_FAILURES) return;
    const down: Phase = { kind: "down", reason: error.message };
    this.#become(down, error.message);
    // Ends on the first answer, or on close.
    void this.#probeUntilUp(down);
  }

  close(): void {
    this.#phase = { kind: "closed", was: this.state };
    this.#closing.abort();
  }

  #become(phase: Phase & { kind: VaultState }, reason: string): void {
    if (this.#phase.kind === "closed") return;
    this.#phase = phase;
    this.#options.onChange(phase.kind, reason);
  }

  async #probeUntilUp(down: Phase & { kind: "down" }): Promise<void> {
    while (this.#phase === down) {
      try {
        await sleep(jitterMs(PROBE_MIN_MS, PROBE_MAX_MS), this.#closing.signal);
        await this.#options.probe();
        this.succeeded();
      } catch (error) {
        down.reason = toTierkvError(error).message;
      }
    }
  }
}
