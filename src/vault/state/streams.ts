// Owns the streamed calls a vault has open: how many, until when, and how all of them end.
import { TierkvError } from "../../base/errors.ts";
import { STREAM_MS_MAX, VAULT_STREAMS_MAX } from "../../base/limits/general.ts";
import { deadlineSignal, wallClockMs } from "../../base/time.ts";

/** The part of a gRPC server call that says until when it runs. */
export interface ServerCall {
  getDeadline(): Date | number;
  once(event: "cancelled", listener: () => void): unknown;
}

export interface OpenStream {
  /** Fires when the client went away or cancelled, a deadline passed, or the vault stops; its reason is a coded error. */
  readonly signal: AbortSignal;
  /** Gives the place back; must be called exactly once. */
  end(): void;
}

export class OpenStreams {
  readonly #open = new Set<AbortController>();
  readonly #whenIdle: (() => void)[] = [];

  /** Takes one of VAULT_STREAMS_MAX places. Throws OVERLOAD when there is none. */
  open(call: ServerCall, what: string): OpenStream {
    if (this.#open.size >= VAULT_STREAMS_MAX) {
      throw new TierkvError("OVERLOAD", {
        what: "streams of this vault",
        count: this.#open.size,
        limit: VAULT_STREAMS_MAX,
      });
    }
    const controller = new AbortController();
    call.once("cancelled", () => controller.abort(new TierkvError("CANCELLED", { what })));
    const timeoutMs = Math.min(Number(call.getDeadline()) - wallClockMs(), STREAM_MS_MAX);
    const deadline = deadlineSignal(Math.max(0, timeoutMs), controller.signal, what);
    this.#open.add(controller);
    return {
      signal: deadline.signal,
      end: () => {
        deadline.clear();
        this.#open.delete(controller);
        if (this.#open.size === 0) for (const resolve of this.#whenIdle.splice(0)) resolve();
      },
    };
  }

  get size(): number {
    return this.#open.size;
  }

  abortAll(reason: TierkvError): void {
    for (const controller of this.#open) controller.abort(reason);
  }

  /** Resolves once no stream is open. */
  idle(): Promise<void> {
    if (this.#open.size === 0) return Promise.resolve();
    return new Promise((resolve) => {
      this.#whenIdle.push(resolve);
    });
  }
}
