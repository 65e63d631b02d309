// Owns engines found by polling a DNS name or another source: each is added, moved and removed as the answers change.
import type { LookupAddress } from "node:dns";
import { lookup } from "node:dns/promises";
import { toTierkvError } from "../../base/errors.ts";
import { ofOneFamily } from "../../base/families.ts";
import { GATEWAY_DISCOVER_MS, GATEWAY_RESOLVE_MS } from "../../base/limits/gateway.ts";
import type { Logger } from "../../base/log.ts";
import { withDeadline } from "../../base/time.ts";

/** Addresses where an engine publishes and replays its events, `host:port`; null: not known. */
export interface Publishing {
  events: string | null;
  replays: string | null;
}

/** A discovered engine; its address is `host:port`. */
export interface Neighbour extends Publishing {
  address: string;
}

/** Returns the engines that a source knows now; throws while the source cannot tell. */
export type Look = () => Promise<readonly Neighbour[]>;

export interface DiscoveryOptions {
  /** Name of the source in the log. */
  of: string;
  logger: Logger;
  look: Look;
  /** Returns false where the gateway has no room for the engine; the next poll offers it again. */
  onFound(one: Neighbour): boolean;
  /** The engine publishes its events elsewhere now. */
  onMoved(one: Neighbour): void;
  onGone(one: Neighbour): void;
}

/** Polls from `start` until `close`. A failed poll keeps the engines found before. */
export class Discovery {
  readonly #options: DiscoveryOptions;
  #found: ReadonlyMap<string, Neighbour> = new Map();
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;
  #isFailing = false;

  constructor(options: DiscoveryOptions) {
    this.#options = options;
  }

  /** Resolves after a poll; the next ones follow on a timer. */
  async start(): Promise<void> {
    await this.#ask();
    if (!this.#isClosed) this.#timer = setTimeout(() => void this.start(), GATEWAY_DISCOVER_MS);
  }

  close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    return Promise.resolve();
  }

  async #ask(): Promise<void> {
    const { of, logger, look } = this.#options;
    try {
      const all = await withDeadline(look(), GATEWAY_RESOLVE_MS, `asking ${of}`);
      this.#isFailing = false;
      if (!this.#isClosed) this.#take(all);
    } catch (error) {
      const { message: reason } = toTierkvError(error);
      if (!this.#isFailing)
        logger.warn({ of, reason }, "engines cannot be listed: the known engines stay in use");
      this.#isFailing = true;
    }
  }

  #take(all: readonly Neighbour[]): void {
    const { onFound, onMoved, onGone } = this.#options;
    const before = this.#found;
    const now = new Map(all.map((one) => [one.address, one]));
    // Engines that left are removed first, because there may be no room for both.
    for (const one of before.values()) if (!now.has(one.address)) onGone(one);
    for (const [address, one] of now) {
      const known = before.get(address);
      if (known === undefined) {
        if (!onFound(one)) now.delete(address);
      } else if (known.events !== one.events || known.replays !== one.replays) onMoved(one);
    }
    this.#found = now;
  }
}

type Resolve = (host: string, options: { all: true }) => Promise<readonly LookupAddress[]>;

/** Returns an address of each machine behind a host name. */
export async function addressesOf(host: string, resolve: Resolve = lookup): Promise<string[]> {
  const found = await resolve(host, { all: true });
  const of = (wanted: number): string[] =>
    found.filter(({ family }) => family === wanted).map(({ address }) => address);
  return ofOneFamily({ v4: of(4), v6: of(6).map((address) => `[${address}]`) }).toSorted();
}
