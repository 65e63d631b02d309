// Owns the vaults' statistics for displays: fetched only while one looks, and never in the path of a request.
import { toTierkvError } from "../../base/errors.ts";
import { STATUS_TIMEOUT_MS } from "../../base/limits/general.ts";
import { VAULT_SEEN_MS } from "../../base/limits/seen.ts";
import { nowMs } from "../../base/time.ts";
import type { BlockStore, StoreNode } from "../../client/source.ts";
import type { VaultClients } from "./pools.ts";

/** Statistics from a vault's last answer. */
export interface VaultSeen {
  /** Milliseconds since it was asked for that answer, which is no older. */
  ageMs: number;
  /** Milliseconds that the answer took. */
  rttMs: number;
  /** Memory in use. */
  usedBytes: number;
  /** Memory that the vault may use. */
  maxBytes: number;
  /** Factor on its capacity in its share of a pool. */
  weight: number;
  /** Records in memory. */
  records: number;
  /** Keys looked up since the vault's start, by all clients. */
  lookupKeys: number;
  /** Keys of these whose record was held. */
  lookupHits: number;
  /** Records evicted from memory since the vault's start. */
  evicted: number;
  /** Named sessions. */
  sessions: number;
  /** Bytes that sessions keep. */
  keptBytes: number;
  /** Records above [vault] kept_percent, which were stored without protection. */
  keepsRefused: number;
  /** Open lanes of all its clients. */
  lanes: number;
  /** Record bytes per second to all clients, over about the last ten seconds. */
  outBytesPerS: number;
  /** The same from all clients. */
  inBytesPerS: number;
  /** null: it has none. `records`: on disk, some of them in memory as well. */
  disk: DiskSeen | null;
  /** Memory of each node of a store that others run; null: a vault. */
  nodes: readonly StoreNode[] | null;
}

export interface DiskSeen {
  /** Bytes of files on the disk. */
  usedBytes: number;
  /** Bytes that the vault may use there. */
  maxBytes: number;
  /** Records on the disk. */
  records: number;
  /** True while writes to the disk fail. */
  failing: boolean;
  /** null: it has none. `pendingBytes`: not there yet. */
  archive: { failing: boolean; trouble: string; pendingBytes: number } | null;
}

interface Answer {
  seen: Omit<VaultSeen, "ageMs">;
  atMs: number;
}

export class VaultWatch {
  readonly #vaults: VaultClients;
  readonly #seen = new WeakMap<BlockStore, Answer>();
  /** When the latest look ended for each vault, and why without an answer; empty: with one. */
  readonly #ended = new WeakMap<BlockStore, { atMs: number; trouble: string }>();
  readonly #onLook: () => void;
  #askedMs: number | null = null;

  /** `onLook`: called with each look, to hear of drains and weights, which nothing else does without engines. */
  constructor(vaults: VaultClients, onLook: () => void) {
    this.#vaults = vaults;
    this.#onLook = onLook;
  }

  /** Returns a vault's latest answer; null: none came, or it was not asked. */
  seen(client: BlockStore): VaultSeen | null {
    const answer = this.#seen.get(client);
    return answer === undefined
      ? null
      : { ageMs: Math.round(nowMs() - answer.atMs), ...answer.seen };
  }

  /** Milliseconds since the start of the latest look that has ended for this vault; null: none has. */
  lookedMs(client: BlockStore): number | null {
    const ended = this.#ended.get(client);
    return ended === undefined ? null : Math.round(nowMs() - ended.atMs);
  }

  /** Why the latest look that ended got no answer; empty: it got one, or none has ended. */
  trouble(client: BlockStore): string {
    return this.#ended.get(client)?.trouble ?? "";
  }

  /** Refreshes the answers, because a display looks at them. */
  look(): void {
    this.#onLook();
    if (this.#askedMs !== null && nowMs() - this.#askedMs < VAULT_SEEN_MS) return;
    this.#askedMs = nowMs();
    for (const client of [...this.#vaults.kv, ...this.#vaults.ssm]) void this.#ask(client);
  }

  async #ask(client: BlockStore): Promise<void> {
    let atMs = nowMs();
    try {
      // The first call opens a connection, so its time is no round trip.
      if (!this.#seen.has(client)) await client.stats?.(STATUS_TIMEOUT_MS);
      atMs = nowMs();
      const seen = await seenOf(client);
      if (seen !== null) this.#seen.set(client, { seen, atMs });
      this.#ended.set(client, { atMs, trouble: "" });
    } catch (error) {
      // The old answer is no longer true; the client's own state needs several failures.
      this.#seen.delete(client);
      this.#ended.set(client, { atMs, trouble: toTierkvError(error).message });
    }
  }
}

async function seenOf(client: BlockStore): Promise<Answer["seen"] | null> {
  const startMs = nowMs();
  const stats = await client.stats?.(STATUS_TIMEOUT_MS);
  if (stats === undefined) return null;
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
    disk: diskOf(disk ?? null),
    nodes: (await client.nodes?.(STATUS_TIMEOUT_MS)) ?? null,
  };
}

type Stats = Awaited<ReturnType<NonNullable<BlockStore["stats"]>>>;

function diskOf(disk: NonNullable<Stats["disk"]> | null): DiskSeen | null {
  if (disk === null) return null;
  const { usedBytes, maxBytes, records, failing, archive = null } = disk;
  const seen = archive && {
    failing: archive.failing,
    trouble: archive.trouble,
    pendingBytes: archive.pendingBytes,
  };
  return { usedBytes, maxBytes, records, failing, archive: seen };
}
