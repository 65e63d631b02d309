// Owns arenas for tests: memory that is ready, closed at the end, and the plainest pages in it.
import type { ArenaId, GeometryId } from "../../src/base/native.ts";
import {
  arenaStatus,
  closeArena,
  createArena,
  leaseSlots,
  prefaultArena,
  registerGeometry,
} from "../../src/base/native.ts";
import type { Geometry } from "../../src/base/native.ts";
import { sleep } from "../../src/base/time.ts";

export interface ArenaShape {
  slotBytes: number;
  slotCount: number;
  dir?: string;
}

export interface Lease {
  slot: number;
  generation: number;
}

/** Runs `use` with the id of an arena whose slots all have memory. */
export async function withArena<T>(
  { slotBytes, slotCount, dir }: ArenaShape,
  use: (arena: ArenaId, path: string) => T | Promise<T>,
): Promise<T> {
  const { id, path } = createArena({ slotBytes, slotCount, dir: dir ?? null, label: 1 });
  try {
    prefaultArena(id);
    while (arenaStatus(id).touchedSlots < slotCount) await sleep(1);
    return await use(id, path);
  } finally {
    closeArena(id);
  }
}

/** Leases a slot to `owner`; throws when none is free. */
export function leaseOne(arena: ArenaId, owner = 1): Lease {
  const [slot, generation] = leaseSlots(arena, owner, 1);
  if (slot === undefined || generation === undefined) throw new Error("no slot is free");
  return { slot, generation };
}

/** Registers pages that are stored raw, one attention layer long unless `rest` says otherwise. */
export const registerOpaque = (layerBytes: number, rest: Partial<Geometry> = {}): GeometryId =>
  registerGeometry({
    group: 0,
    recordClass: 1,
    layout: 1,
    dtype: 0,
    tokens: 16,
    layers: 1,
    heads: 0,
    dimK: 0,
    dimV: 0,
    layerBytes,
    keyOffset: 0,
    valueOffset: 0,
    headStride: 0,
    tokenStride: 0,
    ...rest,
  });
