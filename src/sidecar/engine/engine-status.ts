// Owns the status of one engine, in the shape that `tierkv status` and tests read.
import type { Stage } from "../restore/arena-context.ts";
import type { Footprint, Forecast } from "../restore/forecast.ts";
import type { Decided } from "../save/fidelity.ts";
import type { EngineKind, Hello } from "../socket/hello.ts";
import type { GroupSpec, NamingState } from "../socket/messages.ts";
import type { BlockKind } from "./ranks.ts";
import type { WorkerRank } from "./worker-rank.ts";

export interface EngineStatus {
  /** Id that the engine's processes share. */
  id: string;
  /** vllm, sglang or mlx-lm. */
  kind: EngineKind;
  /** Releases of the engine's software. */
  software: string;
  /** Process id of the scheduler. */
  pid: number;
  /** Address at which the engine publishes its KV-cache events (`tcp://*:5557`); empty: nowhere. */
  events: string;
  /** Address at which it replays them; empty: nowhere. */
  replays: string;
  /** Name of the model, as the engine gives it. */
  model: string;
  /** First 16 hex digits; null until the scheduler has sent it. */
  namespace: string | null;
  /** Progress of the name; no block is saved or restored before it is complete. */
  naming: NamingState;
  /** Worker ranks of the engine. */
  world: number;
  /** True on a CPU with AMX tiles until the engine has computed a step of 64 tokens: before, a small step may kill vLLM. */
  hasAmxTiles: boolean;
  /** Worker ranks that are connected. */
  workers: number;
  /** Whether the scheduler is connected. */
  hasScheduler: boolean;
  /** Whether the engine may restore. */
  isRestoring: boolean;
  /** True while blocks are left that the engine has not copied for its sidecar; up to a second old. */
  isSaving: boolean;
  /** Requests that are looked up or restored now. */
  plans: number;
  /** Blocks that stay in shared memory for later restores. */
  retainedBlocks: number;
  /** Calls to vaults that fetch blocks now. */
  fetches: number;
  /** Prompts of growing length, up to the engine's longest; empty before the arena is there. */
  forecast: Forecast[];
  /** null: the arena is not there yet. */
  footprint: Footprint | null;
  /** Most tokens that one step computes. */
  stepTokens: number;
  /** Whether attention KV comes back bit for bit, and why. */
  fidelity: EngineFidelity;
  /** Blocks by group; empty before the arena is there. */
  groups: BlockKind[];
  /** Shared memory; null: not made yet. `saveSlots`: for saves of all workers; `longestTokens`: of the longest prompt that is restored whole; `unmapped`: workers that cannot use it. */
  arena: {
    bytes: number;
    slotBytes: number;
    slotCount: number;
    /** Slots for saves, over all workers; restores use the others. */
    saveSlots: number;
    /** Tokens of the longest prompt that is restored whole. */
    longestTokens: number;
    touchedSlots: number;
    freeSlots: number;
    leasedSlots: number;
    /** Reasons of workers that cannot use it, by rank; empty: none. */
    unmapped: { rank: number; reason: string }[];
  } | null;
}

/** Whether an engine's attention KV may come back as other bytes, and why. */
export interface EngineFidelity extends Omit<Decided, "codecs"> {
  /** Element type of its KV; null: not known. */
  dtype: GroupSpec["dtype"] | null;
}

export function fidelityOf(
  { codec, why, certificate, identity }: Decided,
  dtype: EngineFidelity["dtype"],
): EngineFidelity {
  return { codec, why, certificate, identity, dtype };
}

/** Returns the fields that an engine's connection gave in its hello; `hasTiles`: its kernel has granted AMX tiles since. */
export function saidBy(
  hello: Hello,
  hasTiles: boolean,
): Pick<
  EngineStatus,
  "id" | "kind" | "software" | "pid" | "events" | "replays" | "world" | "hasAmxTiles"
> {
  const { engine: id, kind, vllm: software, pid, events, replays, world } = hello;
  const hasAmxTiles = hello.hasAmxTiles && !hasTiles;
  return { id, kind, software, pid, events, replays, world, hasAmxTiles };
}

export function arenaStatusOf(
  { arena, cache, costs }: Stage,
  ranks: Iterable<WorkerRank>,
  maxModelLen: number,
  passesWindows: boolean,
): EngineStatus["arena"] {
  const { slotBytes, slotCount, touchedSlots, freeSlots, leasedSlots } = arena.status();
  const { bytes } = arena;
  const { saveSlots } = cache;
  const longestTokens = passesWindows
    ? maxModelLen
    : longestIn(costs, cache.capacityInTime * cache.shards, maxModelLen);
  const unmapped = [...ranks].flatMap(({ rank, unmapped: reason }) =>
    reason === null ? [] : [{ rank, reason }],
  );
  const own = { bytes, slotBytes, slotCount, saveSlots, longestTokens };
  return { ...own, touchedSlots, freeSlots, leasedSlots, unmapped };
}

/** Tokens of the longest prompt, up to `most`, whose restore takes no more than so many slots. */
function longestIn(costs: Stage["costs"], slots: number, most: number): number {
  let [fits, beyond] = [0, most + 1];
  while (beyond - fits > 1) {
    const middle = Math.floor((fits + beyond) / 2);
    if (costs.slotsOf(middle) <= slots) fits = middle;
    else beyond = middle;
  }
  return fits;
}
