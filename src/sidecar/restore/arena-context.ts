// Owns the types of what an engine's restores depend on once its arena exists.
import type { Arena } from "../../arena/arena.ts";
import type { ArenaId } from "../../base/native.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { Group } from "../slots/groups.ts";
import type { FetchPriority } from "../vaults/fetch-priority.ts";
import type { VaultClients } from "../vaults/pools.ts";
import type { GroupShape } from "./boundary.ts";
import type { CostModel } from "./cost-model.ts";
import type { Fetcher } from "./fetcher.ts";

/** Dependencies of fetching and cutting another engine's longer blocks. */
export interface RecutContext {
  arena: ArenaId;
  fidelityOf(namespace: Buffer): number;
  vaults: VaultClients;
  priority: FetchPriority;
  /** Longest duration of one call, in milliseconds. */
  callMs: number;
}

export interface ArenaContext {
  cache: BlockCache;
  fetcher: Fetcher;
  costs: CostModel;
  recut: RecutContext;
  /** Decoded bytes of one block with all shards. */
  sourceBytes(group: number): number;
  shapeOf(group: number): GroupShape;
  groupAt(group: number, shard: number): Group;
}

/** Everything that exists only while the arena does. */
export interface Stage {
  arena: Arena;
  wireId: number;
  cache: BlockCache;
  fetcher: Fetcher;
  costs: CostModel;
  poll: NodeJS.Timeout;
}
