// Owns the cancellation of a small call: what calls need of an AbortSignal, without an EventTarget, which takes as long as the call.
import { TierkvError } from "./errors.ts";

/** The part of an AbortSignal that calls use. */
export interface CancelSignal {
  readonly aborted: boolean;
  readonly reason: unknown;
  addEventListener(type: "abort", listener: () => void, options?: { once: boolean }): void;
  removeEventListener(type: "abort", listener: () => void): void;
}

/** Both the signal and its controller. Each listener is called once. */
export class Cancellation implements CancelSignal {
  readonly #listeners = new Set<() => void>();
  #reason: unknown = undefined;
  #isAborted = false;

  get aborted(): boolean {
    return this.#isAborted;
  }

  get reason(): unknown {
    return this.#reason;
  }

  addEventListener(_type: "abort", listener: () => void): void {
    if (!this.#isAborted) this.#listeners.add(listener);
  }

  removeEventListener(_type: "abort", listener: () => void): void {
    this.#listeners.delete(listener);
  }

  abort(reason: unknown = new TierkvError("CANCELLED", { what: "the call" })): void {
    if (this.#isAborted) return;
    this.#isAborted = true;
    this.#reason = reason;
    for (const listener of this.#listeners) listener();
    this.#listeners.clear();
  }
}
