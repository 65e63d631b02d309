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
} from "../base/native.ts";
import type { ArenaId, ArenaOptions, ArenaStatus } from "../base/native.ts";

/** Owner of slots that the sidecar itself holds; others are connection ids, which start at 1. */
export const SIDECAR_OWNER = 0;

/** Pairs of slot and generation, flat. The generation tells this lease from earlier ones of the same slot. */
export type Leases = Uint32Array;

export class Arena {
  readonly id: ArenaId;
  /** Path for this machine's tools; the shim gets the descriptor. */
  readonly path: string;
  readonly bytes: number;
  readonly slotBytes: number;
  readonly slotCount: number;
  #isClosed = false;

  /** `label` appears in the arena's name in `/proc`. Pages are touched in the background, and a slot is leased only after that. */
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

  /** May return fewer leases than asked, because only touched, free slots are leased. */
  lease(owner: number, count: number): Leases {
    return leaseSlots(this.id, owner, count);
  }

  /** Gives a lease to another owner. */
  handOver(slot: number, generation: number, owner: number): void {
    chownSlot(this.id, slot, generation, owner);
  }

  /** Does nothing once closed, because all leases went with the arena. */
  release(slot: number, generation: number): void {
    if (!this.#isClosed) releaseSlot(this.id, slot, generation);
  }

  /** Releases `count` leases from lease `from` on; both count pairs. */
  releaseAll(leases: Leases, from = 0, count: number = leases.length / 2 - from): void {
    for (let at = from * 2; at < (from + count) * 2; at += 2) {
      this.release(leases[at] ?? 0, leases[at + 1] ?? 0);
    }
  }

  /** Releases all leases of one owner and returns their number. */
  releaseOwner(owner: number): number {
    return this.#isClosed ? 0 : releaseOwner(this.id, owner);
  }

  /** Closes the arena; memory is freed when the last encode or decode ended and the shim has unmapped it. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    closeArena(this.id);
  }
}
