// Owns the order of writes to a local socket: bytes written by Node, and frames with a descriptor, which Node cannot write.
import type { Socket } from "node:net";
import { PASS_RETRY_MS } from "../../base/limits/general.ts";
import type { ArenaId } from "../../base/native.ts";
import { sendArena } from "../../base/native.ts";

export class Outgoing {
  readonly #socket: Socket;
  /** Writes held back while a frame with a descriptor is unsent; null: none is. */
  #held: (() => void)[] | null = null;
  #heldBytes = 0;

  constructor(socket: Socket) {
    this.#socket = socket;
  }

  /** Bytes that the peer has not taken. */
  get waiting(): number {
    return this.#socket.writableLength + this.#heldBytes;
  }

  write(bytes: Buffer): void {
    if (this.#held === null) this.#socket.write(bytes);
    else this.#hold(bytes.length, () => this.write(bytes));
  }

  /** Sends a frame with the arena's descriptor, in order with all other writes. */
  pass(frame: Buffer, arenaId: ArenaId): void {
    if (this.#held !== null) {
      this.#hold(frame.length, () => this.pass(frame, arenaId));
      return;
    }
    this.#held = [];
    // An empty write ends once all earlier bytes have left.
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

  /** Returns the bytes sent, or null when the connection is gone, which drops the held writes. */
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
