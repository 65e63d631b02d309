// Owns the sidecar's view of its vaults: one client per record class or none, and a turnstile before their look-ups.
import type { Namespace, RecordClass } from "../../block.ts";
import type { VaultClient } from "../../client/vault-client.ts";
import { Link } from "../../cost/link.ts";
import { toTierkvError } from "../../errors.ts";
import { CALL_TIMEOUT_MS, LOOKUPS_IN_FLIGHT_MAX } from "../../limits.ts";
import { nowMs } from "../../time.ts";

/** null: no vault of that class is configured; its look-ups miss and its saves are dropped, counted. */
export type VaultClients = Readonly<Record<RecordClass, VaultClient | null>>;

/** Lets a burst of look-ups through a few at a time: the client refuses calls above its own limit. */
export class LookupGate {
  readonly #client: VaultClient;
  readonly #link: Link;
  readonly #waiting: (() => void)[] = [];
  #inFlight = 0;
  /** Of the vault that takes no hints: one of an older release, or one where we may not write. */
  #mutedEpoch: number | null = null;

  constructor(client: VaultClient, link: Link) {
    this.#client = client;
    this.#link = link;
  }

  get state(): VaultClient["state"] {
    return this.#client.state;
  }

  /** null when nobody wants the answer any more once it is its turn. Bounded by the plans that may be open. */
  async lookup(
    namespace: Namespace,
    keys: Buffer,
    timeoutMs: number,
    isWanted: () => boolean,
  ): Promise<Buffer | null> {
    if (this.#inFlight >= LOOKUPS_IN_FLIGHT_MAX) {
      await new Promise<void>((resolve) => {
        this.#waiting.push(resolve);
      });
    } else {
      this.#inFlight += 1;
    }
    try {
      if (!isWanted()) return null;
      const askedMs = nowMs();
      const found = await this.#client.lookup(namespace, keys, timeoutMs);
      this.#link.answered(keys.length, nowMs() - askedMs);
      return found;
    } finally {
      // The place passes on; it is freed only when nobody waits for it.
      const next = this.#waiting.shift();
      if (next === undefined) this.#inFlight -= 1;
      else next();
    }
  }

  /** As the client's `demote`; 0 for a vault that refused before, until it has been restarted. */
  async demote(namespace: Namespace, keys: Buffer, unusedOnly = false): Promise<number> {
    const { epoch } = this.#client;
    if (epoch !== null && epoch === this.#mutedEpoch) return 0;
    try {
      return await this.#client.demote(namespace, keys, CALL_TIMEOUT_MS, unusedOnly);
    } catch (error) {
      const { code } = toTierkvError(error);
      // The call itself may have been the one that greeted.
      if (code === "VAULT_REFUSED" || code === "VAULT_DENIED") {
        this.#mutedEpoch = this.#client.epoch;
      }
      throw error;
    }
  }
}

export type LookupGates = Readonly<Record<RecordClass, LookupGate | null>>;

/** What is known of the ways to the vaults. */
export type Links = Readonly<Record<RecordClass, Link | null>>;

export function openLinks(vaults: VaultClients): Links {
  const link = (client: VaultClient | null): Link | null => (client === null ? null : new Link());
  return { kv: link(vaults.kv), ssm: link(vaults.ssm) };
}

export function openGates(vaults: VaultClients, links: Links): LookupGates {
  const gate = (recordClass: RecordClass): LookupGate | null => {
    const client = vaults[recordClass];
    const link = links[recordClass];
    return client === null || link === null ? null : new LookupGate(client, link);
  };
  return { kv: gate("kv"), ssm: gate("ssm") };
}
