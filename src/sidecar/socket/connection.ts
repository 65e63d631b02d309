// Owns one connection of the local socket: frames in, sharing the event loop; frames out, bounded; and its end.
import type { Socket } from "node:net";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import {
  FRAME_BYTES_MAX,
  FRAMES_OUT_BYTES_MAX,
  GREETING_BYTES_MAX,
  LINGER_MS,
  LOOP_SLICE_MS,
} from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { ArenaId } from "../../base/native.ts";
import { nowMs } from "../../base/time.ts";
import { encodeFrame, FrameDecoder } from "./frames.ts";
import { parseMessage } from "./messages.ts";
import type { ShimMessage, SidecarMessage } from "./messages.ts";
import { Outgoing } from "./outgoing.ts";

export interface ConnectionEvents {
  /** May throw: the connection is refused with that error. */
  onMessage(message: ShimMessage): void;
  /** Called once, when no more frames can come. */
  onEnd(): void;
  /** Called once, before the end, when this side refuses the connection; false where the reason was logged before. */
  onRefused(error: TierkvError): boolean;
}

export class Connection {
  readonly id: number;
  /** Name of the peer in errors and logs; more precise after the hello. */
  peer: string;
  readonly #socket: Socket;
  readonly #outgoing: Outgoing;
  readonly #decoder: FrameDecoder;
  readonly #events: ConnectionEvents;
  readonly #logger: Logger;
  #isReading = false;
  #isRefused = false;
  #isEnded = false;
  #linger: NodeJS.Timeout | undefined;

  constructor(id: number, socket: Socket, events: ConnectionEvents, logger: Logger) {
    this.id = id;
    this.peer = `connection ${id}`;
    this.#socket = socket;
    this.#outgoing = new Outgoing(socket);
    this.#decoder = new FrameDecoder(this.peer, GREETING_BYTES_MAX);
    this.#events = events;
    this.#logger = logger;
    socket.on("data", (chunk: Buffer) => {
      // A refused peer may go on sending; its bytes are not kept.
      if (this.#isRefused) return;
      this.#decoder.push(chunk);
      this.#read();
    });
    // A 'close' follows, which is handled: both mean that the peer is gone.
    socket.on("error", (error) => logger.debug({ peer: this.peer, err: error }, "socket error"));
    socket.on("close", () => this.#onClose());
  }

  /** Accepts frames of full length, because the peer is an engine. */
  trust(): void {
    this.#decoder.allow(FRAME_BYTES_MAX);
  }

  /** Sends messages with all others of this turn of the event loop. */
  send(...messages: readonly SidecarMessage[]): void {
    if (this.#isRefused || !this.#socket.writable) return;
    for (const message of messages) this.#outgoing.write(encodeFrame(message));
    const waiting = this.#outgoing.waiting;
    if (waiting <= FRAMES_OUT_BYTES_MAX) return;
    this.#announce(
      new TierkvError("OVERLOAD", {
        what: `bytes waiting for ${this.peer} to read`,
        count: waiting,
        limit: FRAMES_OUT_BYTES_MAX,
      }),
    );
    this.#socket.destroy();
  }

  /** Sends a message with the arena's descriptor. */
  sendArena(message: Extract<SidecarMessage, { t: "arena" }>, arenaId: ArenaId): void {
    if (this.#isRefused || !this.#socket.writable) return;
    this.#outgoing.pass(encodeFrame(message), arenaId);
  }

  /** Sends the reason, then closes. No more frames are read. */
  refuse(error: TierkvError): void {
    if (this.#isRefused) return;
    this.send({ t: "refuse", code: error.code, message: error.message });
    this.#announce(error);
    this.close();
  }

  /** Closes our direction; frames that the peer has sent already are still read, for LINGER_MS. */
  close(): void {
    if (this.#isEnded) return;
    this.#outgoing.flush();
    this.#socket.end();
    this.#linger ??= setTimeout(() => this.#socket.destroy(), LINGER_MS);
  }

  #announce(error: TierkvError): void {
    if (this.#isRefused) return;
    this.#isRefused = true;
    const isNew = this.#events.onRefused(error);
    const message = "connection closed by the sidecar";
    if (isNew) this.#logger.warn({ peer: this.peer, err: error }, message);
    else this.#logger.debug({ peer: this.peer, err: error }, message);
  }

  /** Handles whole frames for at most LOOP_SLICE_MS, then yields the event loop. */
  #read(): void {
    if (this.#isReading) return;
    this.#isReading = true;
    const startedMs = nowMs();
    try {
      while (!this.#isRefused && !this.#isEnded) {
        const fields = this.#decoder.next();
        if (fields === null) break;
        this.#events.onMessage(parseMessage(fields, this.peer));
        if (nowMs() - startedMs > LOOP_SLICE_MS) {
          this.#socket.pause();
          setImmediate(() => {
            this.#isReading = false;
            this.#read();
          });
          return;
        }
      }
    } catch (error) {
      this.refuse(toTierkvError(error));
    }
    this.#isReading = false;
    this.#socket.resume();
  }

  #onClose(): void {
    clearTimeout(this.#linger);
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.#events.onEnd();
  }
}
