// Owns back-pressure of a gRPC stream: few messages under way, and a bounded wait for the peer to take them.
import { TierkvError } from "../errors.ts";
import { WRITE_AHEAD } from "../limits.ts";
import { withDeadline } from "../time.ts";

interface MessageStream<Message> {
  write(message: Message, done: (error?: Error | null) => void): unknown;
}

export interface PacedWriterOptions {
  /** Ends every wait with its reason: the call is over, and gRPC will not say when a message left. */
  signal: AbortSignal;
  /** How long a peer may take nothing at all. */
  stallMs: number;
  /** Who is waited for, for the error. */
  what: string;
}

/** Writes messages one after another; `write` resolves when less than WRITE_AHEAD are under way. One writer per stream. */
export class PacedWriter<Message> {
  readonly #stream: MessageStream<Message>;
  readonly #options: PacedWriterOptions;
  #underWay = 0;
  #failure: unknown = null;
  #wake: (() => void) | null = null;

  constructor(stream: MessageStream<Message>, options: PacedWriterOptions) {
    this.#stream = stream;
    this.#options = options;
    const { signal } = options;
    signal.addEventListener("abort", () => this.#fail(signal.reason), { once: true });
  }

  async write(message: Message): Promise<void> {
    this.#throwIfOver();
    this.#underWay += 1;
    this.#stream.write(message, (error) => this.#left(error));
    while (this.#underWay >= WRITE_AHEAD) {
      await withDeadline(this.#next(), this.#options.stallMs, this.#options.what);
      this.#throwIfOver();
    }
  }

  #next(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  #left(error: Error | null | undefined): void {
    this.#underWay -= 1;
    if (error !== null && error !== undefined) this.#fail(error);
    this.#wake?.();
  }

  #fail(reason: unknown): void {
    this.#failure ??= reason;
    this.#wake?.();
  }

  #throwIfOver(): void {
    if (this.#options.signal.aborted) this.#failure ??= this.#options.signal.reason;
    if (this.#failure === null) return;
    throw this.#failure instanceof Error
      ? this.#failure
      : new TierkvError("CANCELLED", { what: this.#options.what });
  }
}
