// Owns engines that somebody else knows of, by a name or a sidecar: asked again and again, each comes and goes with the answer.
import { lookup } from "node:dns/promises";
import { toTierkvError } from "../../errors.ts";
import {
  GATEWAY_DISCOVER_MS,
  GATEWAY_ENGINES_MAX,
  GATEWAY_RESOLVE_MS,
} from "../../limits/gateway.ts";
import type { Logger } from "../../log.ts";
import { withDeadline } from "../../time.ts";

export interface DiscoveryOptions {
  /** Whoever is asked, for the log. */
  of: string;
  logger: Logger;
  /** All that are there now; throws while that is not known. */
  ask(): Promise<string[]>;
  /** false: there is no room for it, and it is told of again. */
  onFound(one: string): boolean;
  onGone(one: string): void;
}

/** Asks from `start` until `close`. While there is no answer, what was found stays. */
export class Discovery {
  readonly #options: DiscoveryOptions;
  #found: ReadonlySet<string> = new Set();
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
    const { of, logger, onFound, onGone, ask } = this.#options;
    let now: ReadonlySet<string>;
    try {
      const all = await withDeadline(ask(), GATEWAY_RESOLVE_MS, `asking ${of}`);
      now = new Set(all.slice(0, GATEWAY_ENGINES_MAX));
      this.#isFailing = false;
    } catch (error) {
      const { message: reason } = toTierkvError(error);
      if (!this.#isFailing)
        logger.warn({ of, reason }, "which engines there are cannot be told: those that were stay");
      this.#isFailing = true;
      return;
    }
    if (this.#isClosed) return;
    const before = this.#found;
    // Those that left first: there may be no room for both.
    for (const address of before) if (!now.has(address)) onGone(address);
    this.#found = new Set([...now].filter((address) => before.has(address) || onFound(address)));
  }
}

/** Hosts behind a name. */
export async function addressesOf(host: string): Promise<string[]> {
  const found = await lookup(host, { all: true });
  return found.map(({ address, family }) => (family === 6 ? `[${address}]` : address)).sort();
}
