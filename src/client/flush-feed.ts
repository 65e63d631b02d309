// Owns one client's view of its vault's flushes: the number of the last one handled, and their listener.
import type { FlushedScope, FlushNews } from "../wire/messages.ts";

export type { FlushedScope };

/** Returns whether a flush takes the blocks of a tenant under a namespace. */
export type Takes = (namespace: Buffer, tenant: number) => boolean;

/** Called for each flush once, in order, before any later answer of the vault. Must not throw. */
export interface FlushListener {
  /** Called when the vault answered a hello; a new epoch means that it may have lost its memory. */
  onHello(epoch: number): void;
  /** Called with the flushed scopes; null: everything, because missed flushes are unknown. */
  onFlush(scopes: readonly FlushedScope[] | null): void;
}

export class FlushFeed {
  #number = 0;
  #listener: FlushListener | null = null;

  /** Number of the last flush handled; 0: none. */
  get number(): number {
    return this.#number;
  }

  /** Sets the one listener, for flushes from now on. */
  listen(listener: FlushListener): void {
    this.#listener = listener;
  }

  /** Takes the news of a hello; null: a vault that does not report flushes. */
  take(news: FlushNews | null, epoch: number): void {
    if (news !== null) this.receive(news);
    this.#listener?.onHello(epoch);
  }

  receive({ number, everything, flushes }: FlushNews): void {
    const known = this.#number;
    if (number === known) return;
    const missed = flushes.filter((flush) => flush.number > known);
    // Answers may cross, and the one made earlier has no news.
    if (!everything && missed.length === 0) return;
    this.#number = number;
    this.#listener?.onFlush(everything ? null : missed);
  }
}
