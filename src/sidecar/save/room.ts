// Owns the bytes of saves that may be on their way, at least as many as the engines' slots for saves hold.
import { SAVE_AHEAD_BYTES_MAX, SAVE_QUEUE_BYTES_MAX } from "../../base/limits/general.ts";

export class SaveRoom {
  #slotBytes = 0;

  /** Adds an engine's bytes of slots for saves, negative when it goes. */
  add(slotBytes: number): void {
    this.#slotBytes += slotBytes;
  }

  /** Bytes above which saves are dropped. */
  get bytesMax(): number {
    return Math.max(SAVE_QUEUE_BYTES_MAX, this.#slotBytes + SAVE_AHEAD_BYTES_MAX);
  }
}
