// Owns engines that somebody else knows of, by a name or a sidecar: asked again and again, each comes, changes and goes with the answer.
import { lookup } from "node:dns/promises";
import { toTierkvError } from "../../errors.ts";
import {
  GATEWAY_DISCOVER_MS,
  GATEWAY_ENGINES_MAX,
  GATEWAY_RESOLVE_MS,
} from "../../limits/gateway.ts";
import type { Logger } from "../../log.ts";
import { withDeadline } from "../../time.ts";

/** Where an engine publishes and replays its events, `host:port`; null: nowhere that is known. */
export interface Publishing {
  events: string | null;
  replays: string | null;
}

/** An engine that was found, `host:port`. */
export interface Neighbour extends Publishing {
  address: string;
}

/** The engines that somebody knows of now; throws while that is not known. */
export type Look = () => Promise<readonly Neighbour[]>;

export interface DiscoveryOptions {
  /** Whoever is asked, for the log. */
  of: string;
  logger: Logger;
  look: Look;
  /** false: there is no room for it, and it is told of again. */
  onFound(one: Neighbour): boolean;
  /** It publishes its events elsewhere now. */
  onMoved(one: Neighbour): void;
  onGone(one: Neighbour): void;
}

/** Asks from `start` until `close`. While there is no answer, what was found stays. */
export class Discovery {
  readonly #options: DiscoveryOptions;
  #found: ReadonlyMap<string, Neighbour> = new Map();
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;
  #isFailing = false;

  constructor(options: DiscoveryOptions) {
    this.#options = options;
  }

  /** Was asked once when this resolves. */
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
      if (!this.#isClosed) this.#take(all.slice(0, GATEWAY_ENGINES_MAX));
    } catch (error) {
      const { message: reason } = toTierkvError(error);
      if (!this.#isFailing)
        logger.warn({ of, reason }, "which engines there are cannot be told: those that were stay");
      this.#isFailing = true;
    }
  }

  #take(all: readonly Neighbour[]): void {
    const { onFound, onMoved, onGone } = this.#options;
    const before = this.#found;
    const now = new Map(all.map((one) => [one.address, one]));
    // Those that left first: there may be no room for both.
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

/** Hosts behind a name. */
export async function addressesOf(host: string): Promise<string[]> {
  const found = await lookup(host, { all: true });
  return found.map(({ address, family }) => (family === 6 ? `[${address}]` : address)).sort();
}
