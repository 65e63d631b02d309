// Owns a vault's state as the choice of a codec needs it: the rate of its link, and whether it has room.
import { VAULT_FULL_SHARE, VAULT_ROOM_MS } from "../../base/limits/codec.ts";
import { STATUS_TIMEOUT_MS } from "../../base/limits/general.ts";
import { nowMs } from "../../base/time.ts";
import type { BlockStore } from "../../client/source.ts";
import type { Link } from "../../cost/link.ts";

export class VaultView {
  readonly #client: BlockStore;
  readonly #link: Link;
  #isNearlyFull = false;
  #askedMs: number | null = null;

  constructor(client: BlockStore, link: Link) {
    this.#client = client;
    this.#link = link;
  }

  get address(): string {
    return this.#client.address;
  }

  /** True for memory of this machine, where restores wait for no link. */
  get isMemory(): boolean {
    return this.#client.tier === "shared";
  }

  /** Bytes per second; null: not measured. The rate of saves is no guide for memory, where they take as long as encoding. */
  get restoreRate(): number | null {
    return this.isMemory ? this.#link.down.rate() : this.#link.restoreRate;
  }

  /** As of the vault's last answer; a stale one is renewed in the background. */
  get isNearlyFull(): boolean {
    if (this.#askedMs === null || nowMs() - this.#askedMs > VAULT_ROOM_MS) void this.#ask();
    return this.#isNearlyFull;
  }

  async #ask(): Promise<void> {
    this.#askedMs = nowMs();
    try {
      const stats = await this.#client.stats?.(STATUS_TIMEOUT_MS);
      if (stats !== undefined)
        // A bucket, and a Valkey without a limit, have no size.
        this.#isNearlyFull =
          stats.maxBytes > 0 && stats.usedBytes >= stats.maxBytes * VAULT_FULL_SHARE;
    } catch {
      // A silent vault is asked again; its breaker is not opened from here.
    }
  }
}
