// Owns the source behind a vault that only its archive has: the same calls to the vault, which then reads the archive.
import { Forwarding } from "../forwarding.ts";
import type {
  BlockSource,
  Cost,
  FetchOptions,
  FetchWindow,
  Offer,
  Purpose,
  Settled,
} from "../source.ts";

export class Archive extends Forwarding implements BlockSource {
  /** As the vault last reported it. */
  cost: Cost | null = null;

  /** Asks the vault, which answers for both; only the archive's part is returned. */
  async find(
    namespace: Buffer,
    keys: Buffer,
    deadlineMs: number,
    purpose?: Purpose,
  ): Promise<readonly Offer[]> {
    const offers = await this.inner.find(namespace, keys, deadlineMs, purpose);
    return offers.filter(({ source }) => source === this);
  }

  /** `stallMs` includes the archive's reads, which hold up all windows of the vault (`Fetcher.#run`). */
  fetch(namespace: Buffer, window: FetchWindow, options: FetchOptions): Promise<Settled> {
    return this.inner.fetch(namespace, window, options);
  }

  /** Does nothing: the vault closes its connections. */
  close(): void {}
}
