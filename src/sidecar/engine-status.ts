// Owns what a sidecar says of one engine: the shape that `tierkv status` and tests read.
import type { Arena } from "../arena/arena.ts";
import type { RecordClass } from "../block.ts";

/** What a prompt of that length costs this engine, as far as it is known. */
export interface Forecast {
  tokens: number;
  /** null: the engine has not computed a prompt yet. */
  computeMs: number | null;
  loadMs: number;
  /** Bytes a vault would send of each class. */
  wireBytes: Record<RecordClass, number>;
}

export interface EngineStatus {
  id: string;
  model: string;
  /** First 16 hex digits; null until the scheduler has sent it. */
  namespace: string | null;
  world: number;
  workers: number;
  hasScheduler: boolean;
  isRestoring: boolean;
  plans: number;
  retainedBlocks: number;
  fetches: number;
  /** Prompts of growing length; empty before the arena is there. */
  forecast: Forecast[];
  arena: {
    bytes: number;
    slotBytes: number;
    slotCount: number;
    touchedSlots: number;
    freeSlots: number;
    leasedSlots: number;
  } | null;
}

export function arenaStatusOf(arena: Arena): EngineStatus["arena"] {
  const { slotBytes, slotCount, touchedSlots, freeSlots, leasedSlots } = arena.status();
  const { bytes } = arena;
  return { bytes, slotBytes, slotCount, touchedSlots, freeSlots, leasedSlots };
}
