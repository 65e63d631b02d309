// Owns what vaults say of themselves, for people who look: asked while somebody does, and never on the way of a request.
import type { Vault } from "../../client/vault.ts";
import { STATUS_TIMEOUT_MS } from "../../limits/general.ts";
import { VAULT_SEEN_MS } from "../../limits/seen.ts";
import { nowMs } from "../../time.ts";
import type { VaultClients } from "./pools.ts";

/** As a vault said at its last answer. */
export interface VaultSeen {
  /** How long that answer took. */
  rttMs: number;
  usedBytes: number;
  maxBytes: number;
  /** What its capacity counts times as its share of a pool. */
  weight: number;
  records: number;
  lookupKeys: number;
  lookupHits: number;
  evicted: number;
  /** Conversations that were named, bytes of those that are kept, and records that the quota had no room for so far. */
  sessions: number;
  keptBytes: number;
  keepsRefused: number;
  /** Open ones of all its clients. */
  lanes: number;
  /** Record bytes per second of all its clients, over about the last ten seconds. */
  outBytesPerS: number;
  inBytesPerS: number;
  disk: { usedBytes: number; maxBytes: number; failing: boolean } | null;
}

export class VaultWatch {
  readonly #vaults: VaultClients;
  readonly #seen = new Map<Vault, VaultSeen>();
  #askedMs: number | null = null;

  constructor(vaults: VaultClients) {
    this.#vaults = vaults;
  }

  /** The latest answer of a vault; null: it has not answered, or was not asked. */
  seen(client: Vault): VaultSeen | null {
    return this.#seen.get(client) ?? null;
  }

  /** Somebody looks: what is seen next is newer. */
  look(): void {
    if (this.#askedMs !== null && nowMs() - this.#askedMs < VAULT_SEEN_MS) return;
    this.#askedMs = nowMs();
    for (const client of [...this.#vaults.kv, ...this.#vaults.ssm]) void this.#ask(client);
  }

  async #ask(client: Vault): Promise<void> {
    try {
      // The first call opens a connection, and is no round trip.
      if (!this.#seen.has(client)) await client.stats(STATUS_TIMEOUT_MS);
      this.#seen.set(client, await seenOf(client));
    } catch {
      // Its state says so; what it said before is not true any more.
      this.#seen.delete(client);
    }
  }
}

async function seenOf(client: Vault): Promise<VaultSeen> {
  const startMs = nowMs();
  const stats = await client.stats(STATUS_TIMEOUT_MS);
  const { usedBytes, maxBytes, weight, records, counters, lanes, outBytesPerS, inBytesPerS, disk } =
    stats;
  return {
    rttMs: nowMs() - startMs,
    usedBytes,
    maxBytes,
    weight,
    records,
    lookupKeys: counters["lookup_keys"] ?? 0,
    lookupHits: counters["lookup_hits"] ?? 0,
    evicted: counters["evicted"] ?? 0,
    sessions: stats.sessions,
    keptBytes: stats.keptBytes,
    keepsRefused: counters["keeps_refused"] ?? 0,
    lanes,
    outBytesPerS,
    inBytesPerS,
    disk:
      disk === null || disk === undefined
        ? null
        : { usedBytes: disk.usedBytes, maxBytes: disk.maxBytes, failing: disk.failing },
  };
}
