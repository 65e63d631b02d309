// Owns the trimming of spare record memory that a vault does not need.
import { SPARE_TRIM_MS } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { StoreId } from "../../base/native.ts";
import { storeTrim } from "../../base/native.ts";

/** Trims a store every SPARE_TRIM_MS, off the main thread, one trim at a time. */
export class SpareTrim {
  readonly #timer: NodeJS.Timeout;
  #isTrimming = false;

  constructor(store: StoreId, logger: Logger) {
    this.#timer = setInterval(() => {
      if (this.#isTrimming) return;
      this.#isTrimming = true;
      storeTrim(store)
        .catch((error: unknown) => logger.debug({ err: error }, "spare memory was not trimmed"))
        .finally(() => (this.#isTrimming = false));
    }, SPARE_TRIM_MS);
    this.#timer.unref();
  }

  close(): void {
    clearInterval(this.#timer);
  }
}
