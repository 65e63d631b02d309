// Owns how many bytes of saves may be on their way: what engines were given slots for is never too much.
import { SAVE_AHEAD_BYTES_MAX, SAVE_QUEUE_BYTES_MAX } from "../../limits/general.ts";

export class SaveRoom {
  #slotBytes = 0;

  /** An engine has come with slots for so many bytes of saves, or has gone. */
  add(slotBytes: number): void {
    this.#slotBytes += slotBytes;
  }

  /** Above it saves are dropped. */
  get bytesMax(): number {
    return Math.max(SAVE_QUEUE_BYTES_MAX, this.#slotBytes + SAVE_AHEAD_BYTES_MAX);
  }
}
