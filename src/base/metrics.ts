// Owns the inventory of counters, every name a process may count, and the class that counts them.
import { COUNTER_NAMES_MAX } from "./limits/general.ts";

/** Counters of a sidecar. Bytes are decoded bytes unless the name says `fetched` or `sent` (those travelled). */
export const SIDECAR_COUNTERS = [
  "engines_connected",
  "engines_gone",
  "frames_refused",
  "peers_refused",
  "arenas_unmapped",
  "prefetch_requests",
  "handoffs",
  "handoffs_late",
  "handoff_wait_us",
  "handoff_blocks_early",
  "handoff_blocks_cut",
  "handoff_records_cut",
  "handoff_records_uncut",
  "plans_cut",
  "plans_beyond_arena",
  "plans_windowed",
  "plans_loaded_early",
  "lookup_keys",
  "lookup_hits",
  "blocks_restored_vault",
  "blocks_restored_local",
  "blocks_restored_shared",
  "bytes_restored",
  "bytes_fetched",
  "blocks_encoded_ahead",
  "blocks_saved",
  "bytes_saved",
  "bytes_sent",
  "saves_present",
  "saves_held_back",
  "copies_missing",
  "copies_offered",
  "copies_recalled",
  "copies_sent_bytes",
  "shared_saved",
  "shared_present",
  "shared_dropped",
  "replicas_saved",
  "replicas_present",
  "replicas_sent_bytes",
  "replicas_dropped",
  "blocks_failed_over",
  "bad_records",
  "records_unopened",
  "fetch_stalls",
  "fetches",
  "stores",
  "fetch_busy_us",
  "store_busy_us",
  "reclaims",
  "namespaces_quarantined",
  "audits",
  "vault_errors",
  "listings_refused",
  "local_vault_restarts",
  "flushes",
  "flushed_blocks",
  "spans_sent",
  "spans_dropped",
  "receipts_written",
  "receipts_dropped",
  "session_tells",
  "session_tells_dropped",
  "session_tells_failed",
] as const;

/** Counters of a vault. Store items are counted by outcome, refusals by `refused_<status>`. */
export const VAULT_COUNTERS = [
  "connections_refused",
  "hellos",
  "lookups",
  "lookup_keys",
  "lookup_hits",
  "stores",
  "stores_ended_early",
  "offered",
  "present",
  "stored",
  "stored_bytes",
  "fetches",
  "fetches_ended_early",
  "fetched",
  "fetched_bytes",
  "fetch_missing",
  "reports",
  "reported",
  "demoted",
  "keeps_refused",
  "sessions_released",
  "sessions_expired",
  "quarantined",
  "evicted",
  "evicted_bytes",
  "flushes",
  "calls_refused",
  "calls_unauthenticated",
  "calls_denied",
  "peers_limited",
  "listings_refused",
  "lanes_refused",
  "lanes_lent",
  "tls_refused",
  "probes",
  "probed_bytes",
  "spans_sent",
  "spans_dropped",
] as const;

/** The inventory and the families whose last part is known only at run time. */
export type SidecarCounter =
  | (typeof SIDECAR_COUNTERS)[number]
  | `dropped_${string}`
  | `decided_${string}`
  | `miss_${string}`
  | `plan_${string}`
  | `shim_${string}`;
export type VaultCounter = (typeof VAULT_COUNTERS)[number] | `refused_${string}`;

/** Parts of a request that are timed: look-up, fetch, and the engine's copy. */
export type SidecarTime = "lookup" | "fetch" | "load";

export interface HistogramSnapshot {
  /** Upper bounds, ascending. */
  bounds: readonly number[];
  /** Values within each bound and above the previous one. */
  counts: number[];
  sum: number;
  count: number;
}

/** Upper bounds of a histogram's buckets, in s: from one look-up on a LAN to the longest wait. */
const TIME_BOUNDS_S = [
  0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
] as const;

/** Values of one kind by upper bounds, ascending. */
export class Histogram {
  readonly #bounds: readonly number[];
  readonly #counts: number[];
  #sum = 0;
  #count = 0;

  constructor(bounds: readonly number[] = TIME_BOUNDS_S) {
    this.#bounds = bounds;
    this.#counts = bounds.map(() => 0);
  }

  observe(value: number): void {
    const index = this.#bounds.findIndex((bound) => value <= bound);
    if (index >= 0) this.#counts[index] = (this.#counts[index] ?? 0) + 1;
    this.#sum += value;
    this.#count += 1;
  }

  snapshot(): HistogramSnapshot {
    const [sum, count] = [this.#sum, this.#count];
    return { bounds: this.#bounds, counts: [...this.#counts], sum, count };
  }
}

/** Monotonic counters of one process; starts empty and is read as a snapshot. */
export class Counters<Name extends string = string> {
  readonly #values = new Map<string, { n: number }>();

  constructor(inventory: readonly Name[] = []) {
    for (const name of inventory) this.#values.set(name, { n: 0 });
  }

  /** Adds `n` (>= 0). A name above COUNTER_NAMES_MAX counts under `other`. */
  add(name: Name, n = 1): void {
    const known = this.#values.get(name);
    if (known === undefined) this.#begin(name).n += n;
    else known.n += n;
  }

  #begin(name: Name): { n: number } {
    const key = this.#values.size < COUNTER_NAMES_MAX ? name : "other";
    const begun = this.#values.get(key) ?? { n: 0 };
    this.#values.set(key, begun);
    return begun;
  }

  get(name: Name): number {
    return this.#values.get(name)?.n ?? 0;
  }

  /** All counters by name, in the order they first appeared. */
  snapshot(): Record<string, number> {
    return Object.fromEntries([...this.#values].map(([name, { n }]) => [name, n]));
  }
}

export class SidecarCounters extends Counters<SidecarCounter> {
  readonly #times = { lookup: new Histogram(), fetch: new Histogram(), load: new Histogram() };

  took(what: SidecarTime, ms: number): void {
    this.#times[what].observe(ms / 1000);
  }

  times(): Record<SidecarTime, HistogramSnapshot> {
    const { lookup, fetch, load } = this.#times;
    return { lookup: lookup.snapshot(), fetch: fetch.snapshot(), load: load.snapshot() };
  }
}
export type VaultCounters = Counters<VaultCounter>;

export function newSidecarCounters(): SidecarCounters {
  return new SidecarCounters(SIDECAR_COUNTERS);
}

export function newVaultCounters(): VaultCounters {
  return new Counters<VaultCounter>(VAULT_COUNTERS);
}
