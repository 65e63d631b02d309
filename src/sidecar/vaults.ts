// Owns the sidecar's view of its vaults: one client per record class or none, and a turnstile before their look-ups.
import type { Namespace, RecordClass } from "../block.ts";
import type { VaultClient } from "../client/vault-client.ts";
import { LOOKUPS_IN_FLIGHT_MAX } from "../limits.ts";

/** null: no vault of that class is configured; its look-ups miss and its saves are dropped, counted. */
export type VaultClients = Readonly<Record<RecordClass, VaultClient | null>>;

/** Lets a burst of look-ups through a few at a time: the client refuses calls above its own limit. */
export class LookupGate {
  readonly #client: VaultClient;
  readonly #waiting: (() => void)[] = [];
  #inFlight = 0;

  constructor(client: VaultClient) {
    this.#client = client;
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
      return isWanted() ? await this.#client.lookup(namespace, keys, timeoutMs) : null;
    } finally {
      // The place passes on; it is freed only when nobody waits for it.
      const next = this.#waiting.shift();
      if (next === undefined) this.#inFlight -= 1;
      else next();
    }
  }
}

export type LookupGates = Readonly<Record<RecordClass, LookupGate | null>>;

export function openGates(vaults: VaultClients): LookupGates {
  const gate = (client: VaultClient | null): LookupGate | null =>
    client === null ? null : new LookupGate(client);
  return { kv: gate(vaults.kv), ssm: gate(vaults.ssm) };
}
