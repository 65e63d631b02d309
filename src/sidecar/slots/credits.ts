// Owns the slots one worker may fill: granted as the arena gets ready, taken back by saves and returns, within its share.
import { SIDECAR_OWNER } from "../../arena/arena.ts";
import type { Arena, Leases } from "../../arena/arena.ts";
import { CREDIT_REGRANT_MS } from "../../base/limits/general.ts";

export class Credits {
  readonly #arena: Arena;
  readonly #owner: number;
  readonly #most: number;
  readonly #grant: (leases: Leases) => void;
  /** Slots that the worker holds, each with its generation. */
  readonly #granted = new Map<number, number>();
  /** Slots of saves that are still being read. */
  #saving = 0;
  #isStopped = false;
  #regrant: NodeJS.Timeout | undefined;

  /** `grant` sends slots to the worker; `owner` is its connection; `most` its share. */
  constructor(arena: Arena, owner: number, most: number, grant: (leases: Leases) => void) {
    this.#arena = arena;
    this.#owner = owner;
    this.#most = most;
    this.#grant = grant;
  }

  get granted(): number {
    return this.#granted.size;
  }

  /** True when the worker holds less than half of its share. */
  get isShort(): boolean {
    return this.#granted.size * 2 < this.#most;
  }

  /** Grants free slots up to the worker's share. */
  topUp(): void {
    if (this.#isStopped || this.#regrant !== undefined) return;
    const missing = this.#most - this.#granted.size - this.#saving;
    if (missing <= 0) return;
    const leases = this.#arena.lease(this.#owner, missing);
    for (let at = 0; at + 1 < leases.length; at += 2) {
      this.#granted.set(leases[at] ?? 0, leases[at + 1] ?? 0);
    }
    if (leases.length > 0) this.#grant(leases);
  }

  /** Takes a filled slot over for the sidecar; false when the worker does not hold it. */
  take(slot: number, generation: number): boolean {
    if (this.#granted.get(slot) !== generation) return false;
    this.#granted.delete(slot);
    this.#arena.handOver(slot, generation, SIDECAR_OWNER);
    this.#saving += 1;
    return true;
  }

  /** Frees a save's slot once its block is encoded, sent or dropped. */
  finish(slot: number, generation: number): void {
    this.#saving -= 1;
    this.#arena.release(slot, generation);
  }

  /** Takes back an unused slot; false when the worker does not hold it. */
  giveBack(slot: number, generation: number): boolean {
    if (this.#granted.get(slot) !== generation) return false;
    this.#granted.delete(slot);
    this.#arena.release(slot, generation);
    // Waits, because a worker that cannot use slots now would hand them back again.
    this.#regrant ??= setTimeout(() => {
      this.#regrant = undefined;
      this.topUp();
    }, CREDIT_REGRANT_MS);
    return true;
  }

  /** Stops granting. The worker keeps its slots until the arena goes, because it may still be writing. */
  stop(): void {
    this.#isStopped = true;
    clearTimeout(this.#regrant);
  }
}
