// Owns the destinations of a block: memory of this machine, its owner, and another vault.
import type { RecordClass } from "../../block.ts";
import type { Refusal } from "../../client/source.ts";
import type { SidecarCounters } from "../../metrics.ts";
import type { SaveItem } from "../socket/messages.ts";
import type { Pools } from "../vaults/pools.ts";
import type { StoreQueue, Destination } from "./store-queue.ts";

export interface DestinationsContext {
  pools: Pools;
  stores: Readonly<Record<RecordClass, readonly StoreQueue[]>>;
  counters: SidecarCounters;
}

export interface Destinations {
  /** Destinations that take the block now, in sending order. */
  destinations: Destination[];
  /** Why the block goes nowhere; null: it goes to all of them. */
  refusal: Refusal | "no_vault" | null;
}

/** Decides once for a block which destinations may take it. A vault that may not is left out where memory of this machine takes it. */
export function destinationsOf(
  { recordClass, tokens }: { recordClass: RecordClass; tokens: number },
  { hash, anchor, endTokens }: SaveItem,
  { stores, pools, counters }: DestinationsContext,
): Destinations {
  const pool = pools[recordClass];
  const index = Math.max(0, Math.floor(endTokens / tokens) - 1);
  const home = pool.homeOf(hash, anchor, index);
  const destinations: Destination[] = [];
  const add = (role: Destination["role"], vault: number): Destinations["refusal"] => {
    const store = stores[recordClass][vault];
    if (store === undefined) return "no_vault";
    if (store.refusal === null) destinations.push({ store, flushed: store.flushed, role });
    return store.refusal;
  };
  const isNear = add("near", pool.local) === null;
  const refusal = add("owner", home.owner);
  if (pool.isDouble && add("replica", home.second) !== null) counters.add("replicas_dropped");
  if (refusal === null || !isNear) return { destinations, refusal };
  counters.add(`dropped_${refusal === "no_vault" ? "vault_down" : refusal}`);
  return { destinations, refusal: null };
}
