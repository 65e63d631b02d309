// Owns saving the index for the next gateway, at an interval and at close where it changed, and loading the last one.
import { toTierkvError } from "../base/errors.ts";
import { GATEWAY_SAVE_MS } from "../base/limits/gateway.ts";
import type { Logger } from "../base/log.ts";
import type { BlockIndex } from "./index/index-of-blocks.ts";
import { loadIndex, saveIndex } from "./members/saved-index.ts";
import type { Followed, Loaded } from "./members/saved-index.ts";

/** Returns the saved index; null: none, or unusable, so the gateway starts cold. */
export function loadSaved(path: string, logger: Logger): Loaded | null {
  try {
    return loadIndex(path);
  } catch (error) {
    const { message: reason } = toTierkvError(error);
    logger.warn({ path, reason }, "the saved index is not used");
    return null;
  }
}

export interface KeeperOptions {
  path: string;
  index: BlockIndex;
  /** Knows the engines whose events are complete. */
  roster: { followed(): Followed[] };
  logger: Logger;
}

export class Keeper {
  readonly #options: KeeperOptions;
  readonly #timer: NodeJS.Timeout;
  #running: Promise<void> = Promise.resolve();
  /** Marks of the last save. */
  #saved = "";
  #isFailing = false;

  constructor(options: KeeperOptions) {
    this.#options = options;
    this.#timer = setInterval(() => void this.#save(), GATEWAY_SAVE_MS);
    this.#timer.unref();
  }

  close(): Promise<void> {
    clearInterval(this.#timer);
    return this.#save();
  }

  #save(): Promise<void> {
    this.#running = this.#running.then(() => this.#write());
    return this.#running;
  }

  async #write(): Promise<void> {
    const { path, index, roster, logger } = this.#options;
    const now = roster.followed();
    const news = JSON.stringify(now);
    if (now.length === 0 || news === this.#saved) return;
    try {
      await saveIndex(path, index, now);
      this.#saved = news;
      this.#isFailing = false;
    } catch (error) {
      const { message: reason } = toTierkvError(error);
      const fix = "set [gateway] index_file to a place of this user's";
      if (!this.#isFailing) logger.warn({ path, reason, fix }, "the index is not saved");
      this.#isFailing = true;
    }
  }
}
