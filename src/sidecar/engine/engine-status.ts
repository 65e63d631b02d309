// Owns what a sidecar says of one engine: the shape that `tierkv status` and tests read.
import type { Arena } from "../../arena/arena.ts";
import type { Footprint, Forecast } from "../restore/pacer.ts";
import type { NamingState } from "../socket/messages.ts";
import type { Seat } from "./seat.ts";

export interface EngineStatus {
  id: string;
  model: string;
  /** First 16 hex digits; null until the scheduler has sent it. */
  namespace: string | null;
  /** How far the name is: nothing is kept or restored before it is whole. */
  naming: NamingState;
  world: number;
  /** vLLM computes there on a CPU with AMX tiles, where a small first step may kill it. */
  hasAmxTiles: boolean;
  workers: number;
  hasScheduler: boolean;
  isRestoring: boolean;
  plans: number;
  retainedBlocks: number;
  fetches: number;
  /** Prompts of growing length, up to the longest it takes; empty before the arena is there. */
  forecast: Forecast[];
  /** null: the arena is not there yet. */
  footprint: Footprint | null;
  arena: {
    bytes: number;
    slotBytes: number;
    slotCount: number;
    touchedSlots: number;
    freeSlots: number;
    leasedSlots: number;
    /** Why a worker cannot use it, by rank; empty: none has said so. */
    unmapped: { rank: number; reason: string }[];
  } | null;
}

export function arenaStatusOf(arena: Arena, seats: Iterable<Seat>): EngineStatus["arena"] {
  const { slotBytes, slotCount, touchedSlots, freeSlots, leasedSlots } = arena.status();
  const { bytes } = arena;
  const unmapped = [...seats].flatMap(({ rank, unmapped: reason }) =>
    reason === null ? [] : [{ rank, reason }],
  );
  return { bytes, slotBytes, slotCount, touchedSlots, freeSlots, leasedSlots, unmapped };
}
