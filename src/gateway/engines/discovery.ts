// Owns engines that stand behind a name: each of its addresses is one, and comes and goes with it.
import { lookup } from "node:dns/promises";
import { toTierkvError } from "../../errors.ts";
import {
  GATEWAY_DISCOVER_MS,
  GATEWAY_ENGINES_MAX,
  GATEWAY_RESOLVE_MS,
} from "../../limits-gateway.ts";
import type { Logger } from "../../log.ts";
import { withDeadline } from "../../time.ts";

export interface DiscoveryOptions {
  host: string;
  logger: Logger;
  /** The host of one that is there now. */
  onFound(host: string): void;
  onGone(host: string): void;
  /** All addresses of a name; throws while they are not known. */
  resolve?: (host: string) => Promise<string[]>;
}

/** Asks from `start` until `close`. While the name cannot be resolved, what was found stays. */
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
    const { host, logger, onFound, onGone, resolve = addressesOf } = this.#options;
    let now: ReadonlySet<string>;
    try {
      const all = await withDeadline(resolve(host), GATEWAY_RESOLVE_MS, `resolving ${host}`);
      now = new Set(all.slice(0, GATEWAY_ENGINES_MAX));
      this.#isFailing = false;
    } catch (error) {
      const { message: reason } = toTierkvError(error);
      if (!this.#isFailing) logger.warn({ host, reason }, "a name of engines cannot be resolved");
      this.#isFailing = true;
      return;
    }
    if (this.#isClosed) return;
    const before = this.#found;
    this.#found = now;
    // Those that left first: there may be no room for both.
    for (const address of before) if (!now.has(address)) onGone(address);
    for (const address of now) if (!before.has(address)) onFound(address);
  }
}

async function addressesOf(host: string): Promise<string[]> {
  const found = await lookup(host, { all: true });
  return found.map(({ address, family }) => (family === 6 ? `[${address}]` : address)).sort();
}
