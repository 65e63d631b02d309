// Owns the bytes of saves that may be on their way, at least as many as the engines' slots for saves hold, and of records made ahead.
import {
  SAVE_AHEAD_BYTES_MAX,
  SAVE_AHEAD_SHARE,
  SAVE_QUEUE_BYTES_MAX,
} from "../../base/limits/general.ts";

export class SaveRoom {
  #slotBytes = 0;
  #arenaBytes = 0;
  #aheadBytes = 0;

  /** Adds a rank's bytes of slots for saves, negative when it goes. */
  add(slotBytes: number): void {
    this.#slotBytes += slotBytes;
  }

  /** Adds the bytes of an engine's arena, negative when it goes. */
  addArena(bytes: number): void {
    this.#arenaBytes += bytes;
  }

  /** Bytes above which saves are dropped. */
  get bytesMax(): number {
    return Math.max(SAVE_QUEUE_BYTES_MAX, this.#slotBytes + SAVE_AHEAD_BYTES_MAX);
  }

  /** Bytes of blocks that may be encoded ahead now. */
  get aheadBytes(): number {
    const most = Math.min(SAVE_AHEAD_BYTES_MAX, this.#arenaBytes * SAVE_AHEAD_SHARE);
    return Math.max(0, most - this.#aheadBytes);
  }

  /** Counts blocks that are encoded ahead until they are stored or dropped, as negative bytes then. */
  made(bytes: number): void {
    this.#aheadBytes += bytes;
  }
}
