// Owns what the choice of a codec asks of a vault: how fast its link is, and whether it has room.
import type { Vault } from "../../client/vault.ts";
import type { Link } from "../../cost/link.ts";
import { VAULT_FULL_SHARE, VAULT_ROOM_MS } from "../../limits/codec.ts";
import { STATUS_TIMEOUT_MS } from "../../limits/general.ts";
import { nowMs } from "../../time.ts";

export class Way {
  readonly #client: Vault;
  readonly #link: Link;
  #isNearlyFull = false;
  #askedMs: number | null = null;

  constructor(client: Vault, link: Link) {
    this.#client = client;
    this.#link = link;
  }

  get address(): string {
    return this.#client.address;
  }

  /** Memory of this machine: what comes from it waits for no link. */
  get isMemory(): boolean {
    return this.#client.tier === "shared";
  }

  /** Bytes per second; null: not measured. Saves say nothing of memory: they take as long as encoding. */
  get restoreRate(): number | null {
    return this.isMemory ? this.#link.down.rate() : this.#link.restoreRate;
  }

  /** As the vault said of late: the answer to this question comes with one of the next. */
  get isNearlyFull(): boolean {
    if (this.#askedMs === null || nowMs() - this.#askedMs > VAULT_ROOM_MS) void this.#ask();
    return this.#isNearlyFull;
  }

  async #ask(): Promise<void> {
    this.#askedMs = nowMs();
    try {
      const { usedBytes, maxBytes } = await this.#client.stats(STATUS_TIMEOUT_MS);
      this.#isNearlyFull = usedBytes >= maxBytes * VAULT_FULL_SHARE;
    } catch {
      // One that does not answer is asked again; its breaker is not ours.
    }
  }
}
