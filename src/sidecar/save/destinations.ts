// Owns the destinations of a block: memory of this machine, its owner, and another vault.
import type { RecordClass } from "../../block.ts";
import type { SidecarCounters } from "../../metrics.ts";
import type { SaveItem } from "../socket/messages.ts";
import type { Pools } from "../vaults/pools.ts";
import type { StoreQueue, Destination } from "./store-queue.ts";

export interface DestinationsContext {
  pools: Pools;
  stores: Readonly<Record<RecordClass, readonly StoreQueue[]>>;
  counters: SidecarCounters;
}

/** Returns them in sending order; none: the class has no vault. A vault that is down is left out if another is there. */
export function destinationsOf(
  { recordClass, tokens }: { recordClass: RecordClass; tokens: number },
  { hash, anchor, endTokens }: SaveItem,
  { stores, pools, counters }: DestinationsContext,
): Destination[] {
  const pool = pools[recordClass];
  const index = Math.max(0, Math.floor(endTokens / tokens) - 1);
  const home = pool.homeOf(hash, anchor, index);
  const destinations: Destination[] = [];
  const add = (role: Destination["role"], vault: number): boolean => {
    const store = stores[recordClass][vault];
    if (store === undefined) return false;
    const isUsable = store.refusal === null;
    if (role === "owner" ? destinations.length === 0 || isUsable : isUsable)
      destinations.push({ store, flushed: store.flushed, role });
    return isUsable;
  };
  const isNear = add("near", pool.local);
  if (!add("owner", home.owner) && isNear) {
    counters.add(`dropped_${stores[recordClass][home.owner]?.refusal ?? "vault_down"}`);
  }
  if (pool.isDouble && !add("replica", home.second)) counters.add("replicas_dropped");
  return destinations;
}
