// Owns the order of what leaves on a local socket: bytes that Node writes, and frames that carry a descriptor, which Node cannot.
import type { Socket } from "node:net";
import { PASS_RETRY_MS } from "../../limits/general.ts";
import type { ArenaId } from "../../native.ts";
import { sendArena } from "../../native.ts";

export class Outgoing {
  readonly #socket: Socket;
  /** What came while a descriptor waits for its turn; null: none does. */
  #held: (() => void)[] | null = null;
  #heldBytes = 0;

  constructor(socket: Socket) {
    this.#socket = socket;
  }

  /** Bytes that the peer has not taken yet. */
  get waiting(): number {
    return this.#socket.writableLength + this.#heldBytes;
  }

  write(bytes: Buffer): void {
    if (this.#held === null) this.#socket.write(bytes);
    else this.#hold(bytes.length, () => this.write(bytes));
  }

  /** Sends a frame with the arena's descriptor, after everything before it and before everything after it. */
  pass(frame: Buffer, arenaId: ArenaId): void {
    if (this.#held !== null) {
      this.#hold(frame.length, () => this.pass(frame, arenaId));
      return;
    }
    this.#held = [];
    // An empty write ends when all before it has left.
    if (this.#socket.writableLength === 0) this.#tryPass(frame, arenaId);
    else this.#socket.write("", () => this.#tryPass(frame, arenaId));
  }

  #hold(bytes: number, send: () => void): void {
    this.#heldBytes += bytes;
    this.#held?.push(send);
  }

  #tryPass(frame: Buffer, arenaId: ArenaId): void {
    const sent = this.#sendNow(frame, arenaId);
    if (sent === null) return;
    if (sent === 0) {
      setTimeout(() => this.#tryPass(frame, arenaId), PASS_RETRY_MS);
      return;
    }
    if (sent < frame.length) this.#socket.write(frame.subarray(sent));
    const held = this.#held ?? [];
    this.#held = null;
    this.#heldBytes = 0;
    for (const send of held) send();
  }

  /** null: the connection is gone, and what waits with it. */
  #sendNow(frame: Buffer, arenaId: ArenaId): number | null {
    const { _handle: handle } = this.#socket as { _handle?: { fd?: number } | null };
    if (this.#socket.destroyed || handle?.fd === undefined || handle.fd < 0) return null;
    try {
      return sendArena(handle.fd, arenaId, frame);
    } catch (error) {
      this.#socket.destroy(error as Error);
      return null;
    }
  }
}
