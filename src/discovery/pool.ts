// Owns following the list that a pool's vaults keep: one address leads to all others, and any of them reports changes.
import { toTierkvError } from "../base/errors.ts";
import type { TierkvError } from "../base/errors.ts";
import { HELLO_TIMEOUT_MS, WATCH_TIMEOUT_MS } from "../base/limits/general.ts";
import { LISTING_PAUSE_MS } from "../base/limits/pool.ts";
import type { Logger } from "../base/log.ts";
import { jitterMs, sleep } from "../base/time.ts";
import { askOnce } from "../client/vault/ask.ts";
import type { PoolReply } from "../wire/messages.ts";
import type { ChannelSecurity } from "../wire/security.ts";
import { vaultService } from "../wire/service.ts";
import { Book } from "./book.ts";
import type { ListedVault, VaultSource } from "./source.ts";

export interface PoolSourceOptions {
  /** Vaults asked first; one that runs is enough. */
  seeds: readonly string[];
  /** Members of an earlier list, asked until there is a new one, because seeds may be down. */
  known?: readonly ListedVault[];
  /** Returns how to verify a vault and the credentials to show it. Throws errors that a client may see. */
  securityFor(vault: ListedVault): ChannelSecurity | null;
  logger: Logger;
  /** Called when entries came that the pool's key did not sign, or another key's. */
  onRefused(count: number): void;
}

async function pause(signal: AbortSignal): Promise<void> {
  await sleep(jitterMs(LISTING_PAUSE_MS, 2 * LISTING_PAUSE_MS), signal).catch(() => {});
}

export class PoolSource implements VaultSource {
  readonly kind = "pool";
  readonly #options: PoolSourceOptions;
  readonly #asked = new Map<string, AbortController>();
  #book: Book | null = null;
  #said = "";
  #isClosed = false;
  #isLacking = false;
  failure = "";
  #onList: (list: readonly ListedVault[]) => void = () => {};

  constructor(options: PoolSourceOptions) {
    this.#options = options;
  }

  follow(onList: (list: readonly ListedVault[]) => void): void {
    this.#onList = onList;
    this.#askAll();
  }

  close(): void {
    this.#isClosed = true;
    for (const asking of this.#asked.values()) asking.abort();
  }

  #members(): ListedVault[] {
    const vaults = (this.#book?.vaults ?? []).filter(({ gone }) => !gone);
    return vaults.map(({ address, class: of, certificate }) => ({
      address,
      class: of,
      certificate,
    }));
  }

  /** Holds one open call to each vault of the list and to each seed. */
  #askAll(): void {
    const seeds = this.#options.seeds.map((address) => ({
      address,
      class: null,
      certificate: null,
    }));
    const listed = this.#book === null ? (this.#options.known ?? []) : this.#members();
    const wanted = new Map([...seeds, ...listed].map((vault) => [vault.address, vault]));
    for (const [address, asking] of this.#asked) {
      if (wanted.has(address)) continue;
      asking.abort();
      this.#asked.delete(address);
    }
    for (const [address, vault] of wanted) {
      if (this.#isClosed || this.#asked.has(address)) continue;
      const asking = new AbortController();
      this.#asked.set(address, asking);
      void this.#ask(vault, asking.signal);
    }
  }

  async #ask(first: ListedVault, signal: AbortSignal): Promise<void> {
    const { address } = first;
    const { securityFor } = this.#options;
    let [mark, epoch] = [0, 0];
    while (!signal.aborted) {
      try {
        const listed = this.#members().find((vault) => vault.address === address);
        const security = securityFor(listed ?? first);
        // The first answer comes at once; later ones wait for a change.
        const timeoutMs = mark === 0 ? HELLO_TIMEOUT_MS : WATCH_TIMEOUT_MS;
        const asked = { name: "the", address, security, timeoutMs };
        const reply = await askOnce(asked, vaultService.Pool, { mark, epoch }, signal);
        ({ mark, epoch } = reply);
        this.failure = "";
        this.#take(address, reply);
        // A vault without a list holds no call.
        if (reply.key.length === 0) await pause(signal);
      } catch (error) {
        if (signal.aborted) return;
        mark = 0;
        const err = toTierkvError(error);
        this.failure = err.message;
        this.#sayFailure(address, err);
        await pause(signal);
      }
    }
  }

  /** Warns once where no vault was ever known; otherwise the vaults' own clients say which is down. */
  #sayFailure(vault: string, err: TierkvError): void {
    const { logger, known = [] } = this.#options;
    const isNew = this.#book === null && known.length === 0 && !this.#isLacking;
    if (!isNew) {
      logger.debug({ err, vault }, "no list of vaults");
      return;
    }
    this.#isLacking = true;
    logger.warn({ err, vault }, "no list of the pool's vaults has come yet: none of them is used");
  }

  #take(address: string, { key, vaults }: PoolReply): void {
    const { logger, onRefused } = this.#options;
    if (key.length === 0) {
      const fix = "set [vault] pool_key there, or take `pool:` from the address";
      logger.warn({ vault: address, fix }, "this vault belongs to no pool");
      return;
    }
    // The first answer, from a vault that this machine trusts, sets the key for all others.
    this.#book ??= new Book(key);
    const { refused } = this.#book.take(vaults);
    if (refused > 0 || !this.#book.publicKey.equals(key)) {
      logger.warn({ vault: address, refused }, "a list of vaults that the pool's key did not sign");
      onRefused(Math.max(1, refused));
    }
    const members = this.#members();
    const said = JSON.stringify(members);
    if (said === this.#said || members.length === 0 || this.#isClosed) return;
    this.#said = said;
    this.#askAll();
    this.#onList(members);
  }
}
