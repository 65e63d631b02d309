// Owns what is known of one vault that has a block, or is to have it.
import { nowMs } from "../../time.ts";

export class Holding {
  /** By its place among those of its class. */
  vault: number;
  /** Epoch of the vault that said last that it holds the block, and when; null: it never did. */
  heldEpoch: number | null = null;
  heldMs = 0;
  /** Epoch in which the vault took it a second time, since its last use. */
  offeredEpoch: number | null = null;

  constructor(vault: number) {
    this.vault = vault;
  }

  /** What the vault said just now, or has just given. */
  noteHeld(epoch: number | null): void {
    this.heldEpoch = epoch;
    this.heldMs = nowMs();
  }

  /** Nothing is known of another vault. */
  moveTo(vault: number): void {
    this.vault = vault;
    this.heldEpoch = null;
    this.offeredEpoch = null;
  }
}
