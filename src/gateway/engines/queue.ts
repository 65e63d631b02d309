// Owns the requests that wait for an engine: in what order they are served, and which of them gives way when there are too many.

/** Whose turn it is. */
export interface Turn {
  /** Who shares with whom: a tenant, or what a client names. */
  key: string;
  /** More goes first. */
  priority: number;
  /** What serving it takes, in tokens. */
  tokens: number;
}

interface Waiting<T> {
  item: T;
  turn: Turn;
  /** Tokens that its key had been given when it began, were all keys served evenly. */
  start: number;
}

/**
 * By priority; within one, keys have even shares of tokens (start-time fair queueing), and one key's requests come in order.
 * Whoever sends more than others waits longer, and gives way first.
 */
export class FairQueue<T> {
  readonly #most: number;
  readonly #waiting: Waiting<T>[] = [];
  /** By key: where its last request ends. */
  readonly #ends = new Map<string, number>();
  #now = 0;

  constructor(most: number) {
    this.#most = most;
  }

  get size(): number {
    return this.#waiting.length;
  }

  /** In order. What is taken out meanwhile does no harm. */
  items(): T[] {
    return this.#waiting.map(({ item }) => item);
  }

  /** Who has to give way, which may be the item itself; null: nobody. */
  add(item: T, turn: Turn): T | null {
    const { key, tokens } = turn;
    const start = Math.max(this.#now, this.#ends.get(key) ?? 0);
    const waiting = { item, turn, start };
    const at = this.#waiting.findIndex((other) => isBefore(waiting, other));
    const place = at < 0 ? this.#waiting.length : at;
    if (place >= this.#most) return item;
    this.#ends.set(key, start + tokens);
    this.#waiting.splice(place, 0, waiting);
    this.#forget();
    return this.#waiting.length > this.#most ? (this.#waiting.pop()?.item ?? null) : null;
  }

  /** Clients name keys as they like: those of whom nothing waits are dropped once there are many. */
  #forget(): void {
    if (this.#ends.size <= 2 * this.#most) return;
    const known = new Set(this.#waiting.map(({ turn }) => turn.key));
    for (const key of this.#ends.keys()) if (!known.has(key)) this.#ends.delete(key);
  }

  /** Keys of which anything is remembered. */
  get keys(): number {
    return this.#ends.size;
  }

  /** It is served, or waits no more. */
  remove(item: T, isServed: boolean): void {
    const at = this.#waiting.findIndex((waiting) => waiting.item === item);
    const [gone] = at < 0 ? [] : this.#waiting.splice(at, 1);
    if (gone !== undefined && isServed) this.#now = Math.max(this.#now, gone.start);
    if (this.#waiting.length > 0) return;
    this.#ends.clear();
    this.#now = 0;
  }
}

function isBefore<T>(one: Waiting<T>, other: Waiting<T>): boolean {
  const priority = one.turn.priority - other.turn.priority;
  return priority === 0 ? one.start < other.start : priority > 0;
}
