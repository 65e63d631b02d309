// Owns the seam between the sidecar and every place that blocks come from or go to: BlockSource, Destination, and what passes between.
import type { ItemStatus, RecordClass } from "../base/block.ts";
import type { CancelSignal } from "../base/cancellation.ts";
import type { ArenaId, Goodput } from "../base/native.ts";
import type * as m from "../wire/messages.ts";
import type { FlushFeed } from "./flush-feed.ts";

/** vault: a process or service that answers · shared: memory that the sidecars of this machine map. */
export type Tier = "vault" | "shared";

/** unknown: not asked yet · refused: its configuration or credentials forbid its use. */
export type PeerState = "unknown" | "up" | "down" | "refused";

/**
 * One peer that keeps records of one class. Every call ends within its `deadlineMs` (a duration in milliseconds), whatever the peer
 * does, and rejects with a TierkvError alone: VAULT_DOWN at once while the peer `isDown`, VAULT_DEADLINE, VAULT_BUSY, VAULT_BROKEN,
 * VAULT_REFUSED, CANCELLED where its signal fired, CLOSED after `close`. No call throws before it returns its promise.
 */
export interface Peer {
  readonly tier: Tier;
  /** The class of records it keeps for us. */
  readonly name: RecordClass;
  /** Address as configured or discovered; shown to people. */
  readonly address: string;
  readonly state: PeerState;
  /** Why it is not up, and the fix; empty while it is. */
  readonly trouble: string;
  /** True while it must not be asked: calls would fail at once. */
  readonly isDown: boolean;
  /** Identity of the peer's memory; a new number means that its records may be lost. null: not known yet. */
  readonly epoch: number | null;
  /** State of the connections that records travel on, as `tierkv status` shows it; left out: there are none. */
  readonly lanes?: string;
  /** Paths to the peer that are out of use while another is used; left out: it has one path. */
  readonly cut?: readonly string[];
  /** True where its last failure was a refusal, of this machine by the peer or of the peer by this machine; left out: it never is. */
  readonly isRefusing?: boolean;
  /** True where records are read where they stand, in each other's memory, instead of sent; left out: they never are. */
  readonly isLent?: boolean;
  /** Cancels all calls under way. Idempotent. */
  close(): void;
}

/** Purpose of a look-up. */
export interface Purpose {
  /** Context of the span that asks, 25 bytes; null: no span. */
  trace: Buffer | null;
  /** False for a look-up that no request caused: the peer's hit rate leaves it out. */
  isCounted: boolean;
  /** Tenant of all asked records, for places whose names of records depend on it; left out: nobody in particular. */
  tenant?: number;
}

export const OF_A_REQUEST: Purpose = { trace: null, isCounted: true };
export const UNCOUNTED: Purpose = { trace: null, isCounted: false };

/** Time that a source takes for records beside the time of its link, in milliseconds, as it measured it. */
export interface Cost {
  /** Until the first record has come. */
  firstMs: number;
  /** From one record to the next. */
  nextMs: number;
}

/** Cost of a source whose records lie in memory or on a disk: its link's rate tells all. */
export const NO_COST: Cost = { firstMs: 0, nextMs: 0 };

/** Records that one source can send. */
export interface Offer {
  /** Where to fetch them: the source that was asked, or a slower one behind it, such as its archive. */
  readonly source: BlockSource;
  /** Bitmap over the asked keys: bit i % 8, least significant first, of byte i / 8. Offers of one answer share no bit. */
  readonly keys: Buffer;
  /** null: the source has not measured it yet. */
  readonly cost: Cost | null;
}

/** Slots that records go to: one entry per key; for leases a pair of slot and generation. */
export interface FetchWindow {
  arena: ArenaId;
  /** Number of the fidelity class; records of another are refused. */
  fidelity: number;
  /** Packed keys, 36 bytes each, in the order needed. */
  keys: Buffer;
  /** Native geometry of each slot. */
  geometries: Uint32Array;
  leases: Uint32Array;
  /** Context of the span that fetches, 25 bytes; null, or left out: no span. */
  trace?: Buffer | null;
  /** Tenant of all records; left out: nobody in particular. */
  tenant?: number;
}

export interface FetchOptions {
  deadlineMs: number;
  /**
   * Milliseconds without a byte after which the call ends with FETCH_STALLED; left out: only the deadline ends it. A source that first
   * reads an archive adds that time.
   */
  stallMs?: number;
  signal?: CancelSignal | undefined;
}

/** Results of a call's items. */
export interface Settled {
  /**
   * One status per item. ACCEPTED: verified and decoded in its slot, or as asked · MISSING: not kept · BAD_RECORD: came damaged ·
   * OVER_BUDGET: the peer is short of memory · INCOMPLETE: the lease ended, or the connection broke before it came.
   */
  statuses: Uint8Array;
  /** Record bytes that travelled. */
  bytes: number;
  /** Reason for refusing the first bad record; null: none was. */
  reason: string | null;
}

/** A place that blocks come from. */
export interface BlockSource extends Peer {
  /** Meter of fetched record bytes. */
  readonly down: Goodput;

  /**
   * Finds which of the packed `keys` (36 bytes each, any number) it can send, in one round trip where the peer allows. An answer without
   * an offer means that it has none.
   */
  find(
    namespace: Buffer,
    keys: Buffer,
    deadlineMs: number,
    purpose?: Purpose,
  ): Promise<readonly Offer[]>;

  /**
   * Fetches records into leased slots; their bytes never enter JavaScript, and each is verified before its status says ACCEPTED. After
   * the promise has settled, no slot of the window is written by this call, as far as its lease has ended or passes to another.
   */
  fetch(namespace: Buffer, window: FetchWindow, options: FetchOptions): Promise<Settled>;

  /** Fetches records verified but undecoded into reserved ids of the native outbox; left out: it cannot. */
  collect?(
    namespace: Buffer,
    keys: Buffer,
    records: readonly number[],
    deadlineMs: number,
    tenant?: number,
  ): Promise<Settled>;

  /**
   * Reports records that did not verify here. The source checks its own copies. Per key: QUARANTINED (was damaged there, and is
   * dropped), PRESENT (sound there) or MISSING.
   */
  report(
    namespace: Buffer,
    keys: Buffer,
    reason: string,
    deadlineMs: number,
    tenant?: number,
  ): Promise<ItemStatus[]>;
}

/** One record of the native outbox to store. */
export interface StoreItem {
  /** Packed key, 36 bytes. */
  key: Buffer;
  /** `make` encodes a deferred record that could not be encoded on its way at its announced length. */
  record: { readonly id: number; readonly isDeferred: boolean; make(): Promise<void> };
}

/** Memory of one node of Valkey, as it tells it. */
export interface StoreNode {
  /** Address of the node. */
  address: string;
  /** Memory in use. */
  usedBytes: number;
  /** Limit of its memory (`maxmemory`); 0: none. */
  maxBytes: number;
  /** `maxmemory-policy`. */
  policy: string;
  /** Number of keys. */
  keys: number;
  /** Keys with a time to live. */
  expiring: number;
  /** Why the node does not report these figures; empty: it does. */
  trouble: string;
}

/** Why a destination takes no record now. */
export type Refusal = "vault_down" | "read_only";

/** A place that records go to. */
export interface Destination extends Peer {
  /** Meter of stored record bytes that it took. */
  readonly up: Goodput;
  /** Why it takes no record now; null: it does. The one place that decides it before a record is offered. */
  readonly refusal: Refusal | null;
  /** Capacity for its share of a pool, in bytes; null: not known, or it is no member of one. */
  readonly capacityBytes: number | null;
  /** True while it takes no new records, as last reported. */
  readonly isDraining: boolean;
  /** Its flushes, in order; one that knows none never reports any. */
  readonly flushes: FlushFeed;

  /**
   * Stores records for `tenant` (0: nobody in particular), put-if-absent, made with knowledge of its flushes up to `flushed`. Returns a
   * status per item: ACCEPTED or DURABLE (taken), PRESENT (it has one), INCOMPLETE (the record can no longer be made), or a refusal.
   * Records taken before a failure stay.
   */
  store(
    namespace: Buffer,
    items: readonly StoreItem[],
    deadlineMs: number,
    tenant?: number,
    flushed?: number,
    trace?: Buffer | null,
  ): Promise<ItemStatus[]>;

  /** Notes a namespace's model before its records are asked for; left out: names of records do not depend on it. */
  learnModel?(namespace: Buffer, model: string): void;

  /** Names a namespace's model, for flushes by model; left out: it keeps no names. */
  nameModel?(namespace: Buffer, model: string, deadlineMs: number): Promise<unknown>;

  /** Reports drops here, and waits for news: `flushes` has it by then. Left out: there is never any. */
  watch?(
    request: Omit<m.WatchRequest, "flushed" | "draining" | "capacityBytes">,
    deadlineMs: number,
    signal: AbortSignal,
  ): Promise<void>;

  /** Returns statistics for displays; left out: it has none. */
  stats?(deadlineMs: number): Promise<m.StatsReply>;

  /** Tells the memory of each node of a store that others run; left out: a vault. */
  nodes?(deadlineMs: number): Promise<readonly StoreNode[]>;

  /** Assigns records to a session, or keeps or ends it; left out: it knows no sessions. */
  keep?(request: m.KeepRequest, deadlineMs: number): Promise<m.KeepReply>;

  /** Refusals of a store that others run, by name (`refused_`), and the cost of requests to it (`requests_`); left out: a vault. */
  counts?(): Readonly<Record<string, number>>;

  /** Lists the sessions it keeps; left out with `keep`. */
  sessions?(deadlineMs: number): Promise<m.Session[]>;
}

/** A source that keeps what it is given: what `[cluster] kv_cold` and `ssm_cold` name. */
export interface BlockStore extends BlockSource, Destination {
  /** The place behind it, which is asked for what it lacks; left out: there is none. */
  readonly behind?: BlockStore;
}
