// Owns what one client knows of its vault's flushes: the last number it has acted on, and who acts on them.
import type { FlushedScope, FlushNews } from "../wire/messages.ts";

export type { FlushedScope };

/** Whether what a tenant has under a namespace is to go. */
export type Takes = (namespace: Buffer, tenant: number) => boolean;

/** Hears of each flush once, in order, before any later answer of the vault. Must not throw. */
export interface FlushListener {
  /** The vault answered a hello; another epoch means that it may have lost what it held in memory. */
  onHello(epoch: number): void;
  /** null: drop everything, because what was missed is not known any more. */
  onFlush(scopes: readonly FlushedScope[] | null): void;
}

export class FlushFeed {
  #number = 0;
  #listener: FlushListener | null = null;

  /** Of the last flush that was acted on; 0: none. */
  get number(): number {
    return this.#number;
  }

  /** One listener; it hears what comes from now on. */
  listen(listener: FlushListener): void {
    this.#listener = listener;
  }

  /** What a hello answered. A vault of which nothing is known of flushes says nothing. */
  take(news: FlushNews | null, epoch: number): void {
    if (news !== null) this.receive(news);
    this.#listener?.onHello(epoch);
  }

  receive({ number, everything, flushes }: FlushNews): void {
    const known = this.#number;
    if (number === known) return;
    const missed = flushes.filter((flush) => flush.number > known);
    // Two answers may cross: the one that was made first says nothing new.
    if (!everything && missed.length === 0) return;
    this.#number = number;
    this.#listener?.onFlush(everything ? null : missed);
  }
}
