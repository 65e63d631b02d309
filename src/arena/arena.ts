// Owns one engine's shared memory as the sidecar sees it: slots are leased, handed on and released by number and generation.
import {
  arenaStatus,
  chownSlot,
  closeArena,
  createArena,
  leaseSlots,
  prefaultArena,
  releaseOwner,
  releaseSlot,
} from "../native.ts";
import type { ArenaId, ArenaOptions, ArenaStatus } from "../native.ts";

/** The owner of slots the sidecar itself holds; others are connection ids, which start at 1. */
export const SIDECAR_OWNER = 0;

/** Pairs of slot and generation, flat. A generation tells this lease from earlier ones of the same slot. */
export type Leases = Uint32Array;

export class Arena {
  readonly id: ArenaId;
  /** Where this machine's tools find it; the shim gets its descriptor. */
  readonly path: string;
  readonly bytes: number;
  readonly slotBytes: number;
  readonly slotCount: number;
  #isClosed = false;

  /** `label` stands in the name that `/proc` shows for it. Allocates nothing yet: pages are touched in the background, and a slot is leased only after that. */
  constructor(options: Omit<ArenaOptions, "label">, label = 0) {
    const { id, path, bytes } = createArena({ ...options, label });
    this.id = id;
    this.path = path;
    this.bytes = bytes;
    this.slotBytes = options.slotBytes;
    this.slotCount = options.slotCount;
    prefaultArena(id);
  }

  status(): ArenaStatus {
    return arenaStatus(this.id);
  }

  /** May return fewer than asked: only touched, free slots are leased. */
  lease(owner: number, count: number): Leases {
    return leaseSlots(this.id, owner, count);
  }

  /** Passes a lease on. */
  handOver(slot: number, generation: number, owner: number): void {
    chownSlot(this.id, slot, generation, owner);
  }

  /** Nothing when closed: everything went with the arena. */
  release(slot: number, generation: number): void {
    if (!this.#isClosed) releaseSlot(this.id, slot, generation);
  }

  /** `count` leases from the one at `from` on; both count pairs. */
  releaseAll(leases: Leases, from = 0, count: number = leases.length / 2 - from): void {
    for (let at = from * 2; at < (from + count) * 2; at += 2) {
      this.release(leases[at] ?? 0, leases[at + 1] ?? 0);
    }
  }

  /** All leases of one owner; returns how many. */
  releaseOwner(owner: number): number {
    return this.#isClosed ? 0 : releaseOwner(this.id, owner);
  }

  /** The memory goes when the last encode or decode that uses it is done, and when the shim has unmapped it. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    closeArena(this.id);
  }
}
