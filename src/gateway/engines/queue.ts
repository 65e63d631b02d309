// Owns the queue of requests that wait for an engine: their order, and which is shed when there are too many.

/** Fields that decide a request's place in the queue. */
export interface Turn {
  /** Requests with one key share: a tenant, or a name that the client gives. */
  key: string;
  /** A higher priority goes first. */
  priority: number;
  /** Cost of serving the request, in tokens. */
  tokens: number;
}

interface Waiting<T> {
  item: T;
  turn: Turn;
  /** Virtual start time: tokens that its key has been served by then, were all keys served evenly. */
  start: number;
}

/**
 * Orders by priority. Within one priority, keys get even shares of tokens (start-time fair queueing) and each key's requests
 * keep their order. A key that sends more than others waits longer and is shed first.
 */
export class FairQueue<T> {
  readonly #most: number;
  readonly #waiting: Waiting<T>[] = [];
  /** Virtual time at which each key's last request ends. */
  readonly #ends = new Map<string, number>();
  #now = 0;

  constructor(most: number) {
    this.#most = most;
  }

  get size(): number {
    return this.#waiting.length;
  }

  /** Returns a copy in order, so that requests may be removed meanwhile. */
  items(): T[] {
    return this.#waiting.map(({ item }) => item);
  }

  /** Adds a request and returns the one to shed, which may be the new one; null: none. */
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

  /** Drops keys without a waiting request once there are many, because clients choose keys freely. */
  #forget(): void {
    if (this.#ends.size <= 2 * this.#most) return;
    const known = new Set(this.#waiting.map(({ turn }) => turn.key));
    for (const key of this.#ends.keys()) if (!known.has(key)) this.#ends.delete(key);
  }

  /** Number of keys remembered. */
  get keys(): number {
    return this.#ends.size;
  }

  /** Removes a request that is served or no longer waits. */
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
