// Owns sources that must be polled, such as DNS names: each answer is a list, and a failure changes nothing.
import { toTierkvError } from "../base/errors.ts";
import { MEMBERS_EVERY_MS, MEMBERS_TIMEOUT_MS } from "../base/limits/pool.ts";
import type { Logger } from "../base/log.ts";
import { sleep, withDeadline } from "../base/time.ts";
import type { ListedVault, SourceKind, VaultSource } from "./source.ts";

export class PolledSource implements VaultSource {
  readonly kind: SourceKind;
  readonly #ask: () => Promise<readonly string[]>;
  readonly #logger: Logger;
  readonly #closing = new AbortController();

  /** `ask` returns addresses, or throws. */
  constructor(kind: SourceKind, ask: () => Promise<readonly string[]>, logger: Logger) {
    this.kind = kind;
    this.#ask = ask;
    this.#logger = logger;
  }

  follow(onList: (list: readonly ListedVault[]) => void): void {
    void this.#run(onList);
  }

  close(): void {
    this.#closing.abort();
  }

  async #run(onList: (list: readonly ListedVault[]) => void): Promise<void> {
    const { signal } = this.#closing;
    while (!signal.aborted) {
      try {
        const list = await withDeadline(this.#ask(), MEMBERS_TIMEOUT_MS, "a list of vaults");
        const vaults = list.map((address) => ({ address, class: null, certificate: null }));
        if (list.length > 0 && !this.#closing.signal.aborted) onList(vaults);
      } catch (error) {
        const err = toTierkvError(error);
        this.#logger.warn(
          { err },
          "the pool's vaults cannot be listed: the last list stays in use",
        );
      }
      await sleep(MEMBERS_EVERY_MS, signal).catch(() => {});
    }
  }
}
