// Owns the order of writes to a local socket: bytes written by Node, and frames with a descriptor, which Node cannot write.
import type { Socket } from "node:net";
import { PASS_RETRY_MS } from "../../base/limits/general.ts";
import type { ArenaId } from "../../base/native.ts";
import { sendArena } from "../../base/native.ts";

/** Most bytes that wait for the end of a turn. */
const TURN_BYTES_MAX = 65_536;

export class Outgoing {
  readonly #socket: Socket;
  /** Writes held back while a frame with a descriptor is unsent; null: none is. */
  #held: (() => void)[] | null = null;
  #heldBytes = 0;
  /** Frames of this turn of the event loop, sent in one write at its end. */
  #turn: Buffer[] = [];
  #turnBytes = 0;

  constructor(socket: Socket) {
    this.#socket = socket;
  }

  /** Bytes that the peer has not taken. */
  get waiting(): number {
    return this.#socket.writableLength + this.#heldBytes + this.#turnBytes;
  }

  /** Sends a frame at the end of this turn of the event loop, because each write wakes the peer, which costs as much as a short restore's other steps. */
  write(bytes: Buffer): void {
    this.#turn.push(bytes);
    this.#turnBytes += bytes.length;
    if (this.#turnBytes > TURN_BYTES_MAX) this.flush();
    else if (this.#turn.length === 1) setImmediate(() => this.flush());
  }

  /** Sends at once what waits for the end of the turn. */
  flush(): void {
    const [first, ...more] = this.#turn;
    if (first === undefined) return;
    this.#turn = [];
    this.#turnBytes = 0;
    this.#write(more.length === 0 ? first : Buffer.concat([first, ...more]));
  }

  #write(bytes: Buffer): void {
    if (this.#held !== null) this.#hold(bytes.length, () => this.#write(bytes));
    else if (this.#socket.writable) this.#socket.write(bytes);
  }

  /** Sends a frame with the arena's descriptor, in order with all other writes. */
  pass(frame: Buffer, arenaId: ArenaId): void {
    this.flush();
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
