// Owns the size of an arena: slots, bytes per slot, and the slots that saves may take.
import { TierkvError } from "../base/errors.ts";
import {
  ARENA_BYTES_DEFAULT,
  ARENA_BYTES_MIN,
  ARENA_FREE_SHARE,
  ARENA_SLOTS_MAX,
  ARENA_SLOTS_MIN,
  SAVE_CREDIT_BYTES,
  SAVE_CREDITS_MAX,
  SAVE_CREDITS_MIN,
} from "../base/limits/general.ts";

const PAGE_BYTES = 4096;

/** Memory of one block of one group on one rank. */
export interface BlockShape {
  /** layers * bytes per layer. */
  bytes: number;
  /** Tokens per block. */
  tokens: number;
  /** Last blocks of the group that a restore needs; 0: all. */
  tail: number;
}

export interface ArenaNeeds {
  engine: string;
  /** Per rank, per group. */
  ranks: readonly (readonly BlockShape[])[];
  maxModelLen: number;
  /** Most tokens that the engine computes in one step. */
  stepTokens: number;
  /** Limit from the configuration; null: not set. */
  bytesMax: number | null;
  /** Free memory of the machine now. */
  freeBytes: number;
}

export interface ArenaPlan {
  slotBytes: number;
  slotCount: number;
  /** Slots that each rank's worker may hold for saves, being filled or waiting to be encoded. */
  saveSlots: number;
}

/** Returns the most that an engine's arena may take where the configuration sets no limit. */
export function arenaCeiling(freeBytes: number): number {
  return Math.max(ARENA_BYTES_DEFAULT, Math.floor(freeBytes * ARENA_FREE_SHARE));
}

/**
 * Plans room for two restores of the longest prompt on all groups and ranks (one loads while one arrives), plus the saves'
 * own share, so that neither starves the other; within the ceiling and half of the free memory. Saves get one step's blocks,
 * up to an eighth of the arena, or SAVE_CREDIT_BYTES, up to a quarter.
 * Throws ENGINE_REFUSED when not even the fewest useful slots fit. docs/how-to/sizes.md has the formula.
 */
export function planArena(needs: ArenaNeeds): ArenaPlan {
  const shapes = needs.ranks.flat();
  const world = needs.ranks.length;
  const slotBytes = roundUp(Math.max(...shapes.map((shape) => shape.bytes)), PAGE_BYTES);
  const prompt = shapes.reduce((sum, shape) => sum + restoredBlocks(shape, needs.maxModelLen), 0);
  const step = Math.max(
    ...needs.ranks.map((groups) =>
      groups.reduce((sum, { tokens }) => sum + Math.ceil(needs.stepTokens / tokens), 0),
    ),
  );

  const bounded = (slots: number): number =>
    clamp(Math.min(slots, Math.ceil((prompt * 2) / world)), SAVE_CREDITS_MIN, SAVE_CREDITS_MAX);
  const saveUsual = bounded(Math.ceil(SAVE_CREDIT_BYTES / slotBytes));
  const saveWanted = Math.max(saveUsual, bounded(step));
  const wanted = Math.max(
    prompt * 2 + saveWanted * world,
    Math.ceil(ARENA_BYTES_MIN / slotBytes),
    ARENA_SLOTS_MIN,
  );
  const bytesMax = needs.bytesMax ?? arenaCeiling(needs.freeBytes);
  const allowed = Math.floor(Math.min(bytesMax, needs.freeBytes / 2) / slotBytes);
  const least = Math.max(ARENA_SLOTS_MIN, world * SAVE_CREDITS_MIN * 2);
  if (allowed < least) throw tooSmall(needs, slotBytes, allowed, least);
  const slotCount = Math.min(wanted, allowed, ARENA_SLOTS_MAX);
  const perRank = slotCount / world;
  const saveSlots = Math.max(
    SAVE_CREDITS_MIN,
    Math.min(saveUsual, Math.floor(perRank / 4)),
    Math.min(saveWanted, Math.floor(perRank / 8)),
  );
  return { slotBytes, slotCount, saveSlots };
}

/** Returns the bytes of an arena that leaves so many slots for restores, whatever saves take. */
export function arenaBytesFor(restoreSlots: number, slotBytes: number): number {
  return Math.ceil((restoreSlots * 4) / 3) * slotBytes;
}

/** Returns the blocks of a group that a restore of so many tokens needs. */
function restoredBlocks({ tokens, tail }: BlockShape, promptTokens: number): number {
  const all = Math.ceil(promptTokens / tokens);
  return tail === 0 ? all : Math.min(tail, all);
}

function tooSmall(
  needs: ArenaNeeds,
  slotBytes: number,
  allowed: number,
  least: number,
): TierkvError {
  const isConfig = needs.bytesMax !== null && needs.bytesMax <= needs.freeBytes / 2;
  return new TierkvError("ENGINE_REFUSED", {
    engine: needs.engine,
    reason:
      `its blocks take ${slotBytes} bytes; ${allowed} fit into ` +
      (isConfig
        ? `[sidecar] arena_bytes = ${needs.bytesMax}`
        : `half of the ${needs.freeBytes} bytes of free memory`) +
      `, at least ${least} are needed`,
    fix: isConfig ? "raise [sidecar] arena_bytes" : "free some memory",
  });
}

function roundUp(value: number, step: number): number {
  return Math.ceil(value / step) * step;
}

function clamp(value: number, min: number, max: number): number {
  return Math.min(Math.max(value, min), max);
}
