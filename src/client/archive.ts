// Owns the source behind a vault that only its archive has: the same calls to the vault, which then reads the archive.
import type { ItemStatus, RecordClass } from "../base/block.ts";
import type { Goodput } from "../base/native.ts";
import type {
  BlockSource,
  Cost,
  FetchOptions,
  FetchWindow,
  Offer,
  PeerState,
  Purpose,
  Settled,
  Tier,
} from "./source.ts";

export class Archive implements BlockSource {
  readonly #vault: BlockSource;
  /** As the vault last reported it. */
  cost: Cost | null = null;

  constructor(vault: BlockSource) {
    this.#vault = vault;
  }

  get tier(): Tier {
    return this.#vault.tier;
  }

  get name(): RecordClass {
    return this.#vault.name;
  }

  get address(): string {
    return this.#vault.address;
  }

  get state(): PeerState {
    return this.#vault.state;
  }

  get trouble(): string {
    return this.#vault.trouble;
  }

  get isDown(): boolean {
    return this.#vault.isDown;
  }

  get epoch(): number | null {
    return this.#vault.epoch;
  }

  get down(): Goodput {
    return this.#vault.down;
  }

  /** Asks the vault, which answers for both; only the archive's part is returned. */
  async find(
    namespace: Buffer,
    keys: Buffer,
    deadlineMs: number,
    purpose?: Purpose,
  ): Promise<readonly Offer[]> {
    const offers = await this.#vault.find(namespace, keys, deadlineMs, purpose);
    return offers.filter(({ source }) => source === this);
  }

  /** `stallMs` includes the archive's reads, which hold up all windows of the vault (`Fetcher.#run`). */
  fetch(namespace: Buffer, window: FetchWindow, options: FetchOptions): Promise<Settled> {
    return this.#vault.fetch(namespace, window, options);
  }

  report(
    namespace: Buffer,
    keys: Buffer,
    reason: string,
    deadlineMs: number,
    tenant?: number,
  ): Promise<ItemStatus[]> {
    return this.#vault.report(namespace, keys, reason, deadlineMs, tenant);
  }

  /** Does nothing: the vault closes its connections. */
  close(): void {}
}
