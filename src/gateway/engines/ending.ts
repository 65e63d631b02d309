// Owns the end of one request before its answer is whole: a lean AbortSignal, because making and joining real ones costs more than a decision.

/** The part of an AbortSignal that requests use; undici takes any such object. */
export interface Abortable {
  readonly aborted: boolean;
  readonly reason: unknown;
  addEventListener(type: "abort", listener: () => void, options?: { once?: boolean }): void;
  removeEventListener(type: "abort", listener: () => void): void;
}

export class Ending implements Abortable {
  aborted = false;
  reason: unknown = undefined;
  readonly #listeners = new Set<() => void>();

  /** Aborts once; each listener is called once. */
  abort(reason: unknown): void {
    if (this.aborted) return;
    this.aborted = true;
    this.reason = reason;
    const listeners = [...this.#listeners];
    this.#listeners.clear();
    for (const listener of listeners) listener();
  }

  addEventListener(_type: "abort", listener: () => void): void {
    this.#listeners.add(listener);
  }

  removeEventListener(_type: "abort", listener: () => void): void {
    this.#listeners.delete(listener);
  }

  /** Returns the same object by the type that undici declares. */
  static of(signal: Abortable): AbortSignal {
    return signal as unknown as AbortSignal;
  }
}

/** The reason where a client left. */
export const CLIENT_LEFT: Error = new Error("the client left");
