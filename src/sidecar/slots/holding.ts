// Owns the knowledge about one vault that has a block, or is to have it.
import { nowMs } from "../../base/time.ts";

export class Holding {
  /** Index of the vault in its class. */
  vault: number;
  /** Epoch of the vault when it last confirmed the block, and when; null: never. */
  heldEpoch: number | null = null;
  heldMs = 0;
  /** Epoch in which the vault took the block again, since the block's last use. */
  offeredEpoch: number | null = null;

  constructor(vault: number) {
    this.vault = vault;
  }

  /** Notes that the vault has just confirmed or sent the block. */
  noteHeld(epoch: number | null): void {
    this.heldEpoch = epoch;
    this.heldMs = nowMs();
  }

  /** Changes the vault, of which nothing is known yet. */
  moveTo(vault: number): void {
    this.vault = vault;
    this.heldEpoch = null;
    this.offeredEpoch = null;
  }
}
