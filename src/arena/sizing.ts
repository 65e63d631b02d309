// Owns the size of an arena: how many slots of how many bytes an engine gets, and how many of them saves may take.
import { TierkvError } from "../errors.ts";
import {
  ARENA_BYTES_MIN,
  ARENA_SLOTS_MAX,
  ARENA_SLOTS_MIN,
  SAVE_CREDIT_BYTES,
  SAVE_CREDITS_MAX,
  SAVE_CREDITS_MIN,
} from "../limits.ts";

const PAGE_BYTES = 4096;

/** What one block of one group takes on one rank. */
export interface BlockShape {
  /** layers * bytes per layer. */
  bytes: number;
  /** Tokens per block. */
  tokens: number;
}

export interface ArenaNeeds {
  engine: string;
  /** Per rank, per group. */
  ranks: readonly (readonly BlockShape[])[];
  maxModelLen: number;
  /** What the configuration allows. */
  bytesMax: number;
  /** Memory the machine has left now. */
  freeBytes: number;
}

export interface ArenaPlan {
  slotBytes: number;
  slotCount: number;
  /** Slots each rank's worker may hold for saves, being filled or waiting to be encoded. */
  saveSlots: number;
}

/**
 * Room for two prompts of the longest kind on all groups and ranks (one being loaded while one arrives), plus the
 * saves' own share, so that neither starves the other; within the configured ceiling and half of the free memory.
 * Throws ENGINE_REFUSED when not even ARENA_SLOTS_MIN slots fit.
 */
export function planArena(needs: ArenaNeeds): ArenaPlan {
  const shapes = needs.ranks.flat();
  const world = needs.ranks.length;
  const slotBytes = roundUp(Math.max(...shapes.map((shape) => shape.bytes)), PAGE_BYTES);
  const prompt = shapes.reduce((sum, { tokens }) => sum + Math.ceil(needs.maxModelLen / tokens), 0);

  const saveWanted = clamp(
    Math.min(Math.ceil(SAVE_CREDIT_BYTES / slotBytes), Math.ceil((prompt * 2) / world)),
    SAVE_CREDITS_MIN,
    SAVE_CREDITS_MAX,
  );
  const wanted = Math.max(
    prompt * 2 + saveWanted * world,
    Math.ceil(ARENA_BYTES_MIN / slotBytes),
    ARENA_SLOTS_MIN,
  );
  const allowed = Math.floor(Math.min(needs.bytesMax, needs.freeBytes / 2) / slotBytes);
  if (allowed < Math.max(ARENA_SLOTS_MIN, world * SAVE_CREDITS_MIN * 2)) {
    throw tooSmall(needs, slotBytes, allowed);
  }
  const slotCount = Math.min(wanted, allowed, ARENA_SLOTS_MAX);
  const share = Math.floor(slotCount / 4 / world);
  return {
    slotBytes,
    slotCount,
    saveSlots: Math.max(SAVE_CREDITS_MIN, Math.min(saveWanted, share)),
  };
}

function tooSmall(needs: ArenaNeeds, slotBytes: number, allowed: number): TierkvError {
  const isConfig = needs.bytesMax <= needs.freeBytes / 2;
  return new TierkvError("ENGINE_REFUSED", {
    engine: needs.engine,
    reason:
      `its blocks take ${slotBytes} bytes; ${allowed} fit into ` +
      (isConfig
        ? `[sidecar] arena_bytes = ${needs.bytesMax}`
        : `half of the ${needs.freeBytes} bytes of free memory`) +
      `, at least ${ARENA_SLOTS_MIN} are needed`,
    fix: isConfig ? "raise [sidecar] arena_bytes" : "free some memory",
  });
}

function roundUp(value: number, step: number): number {
  return Math.ceil(value / step) * step;
}

function clamp(value: number, min: number, max: number): number {
  return Math.min(Math.max(value, min), max);
}
