// Owns who may stay connected to a vault over gRPC: those that call, and do little else.
import type { Socket } from "node:net";
import { ServerInterceptingCall } from "@grpc/grpc-js";
import type { ServerInterceptor } from "@grpc/grpc-js";
import { GUEST_IDLE_BYTES_MAX, GUEST_SWEEP_MS, CALL_IDLE_MS } from "../../limits.ts";
import { nowMs } from "../../time.ts";

/** One connection, and what it did since the last sweep; `calls`: those that were open at any moment of that time. */
interface Guest {
  readonly socket: Socket;
  /** Whether a call of it was let in. */
  isIn: boolean;
  /** When calls began of which no message has come yet, oldest first. */
  readonly unheard: Set<{ readonly sinceMs: number }>;
  openCalls: number;
  calls: number;
  bytesRead: number;
}

/** Connections over TCP; those of a Unix socket are of this machine, and only counted by the listener. */
export class Guests {
  readonly #byPeer = new Map<string, Guest>();
  readonly #settle: (peer: string) => boolean;
  readonly #onRefused: () => void;
  readonly #sweeping: NodeJS.Timeout;

  /** `settle` says whether there is a place for one whose first call was let in. */
  constructor(settle: (peer: string) => boolean, onRefused: () => void) {
    this.#settle = settle;
    this.#onRefused = onRefused;
    this.#sweeping = setInterval(() => this.#sweep(), GUEST_SWEEP_MS);
    this.#sweeping.unref();
  }

  /** Watches a connection until it closes. */
  greet(socket: Socket): void {
    const { remoteAddress: host, remotePort: port } = socket;
    if (host === undefined || port === undefined) return;
    const counts = { isIn: false, openCalls: 0, calls: 0, bytesRead: 0 };
    const guest: Guest = { socket, unheard: new Set(), ...counts };
    const peer = `${host}:${port}`;
    this.#byPeer.set(peer, guest);
    socket.once("close", () => {
      if (this.#byPeer.get(peer) === guest) this.#byPeer.delete(peer);
    });
  }

  /** Sees every call begin and end. */
  get interceptor(): ServerInterceptor {
    return (_method, call) => {
      const guest = this.#byPeer.get(call.getPeer());
      if (guest === undefined) return new ServerInterceptingCall(call);
      guest.calls += 1;
      const begun = { sinceMs: nowMs() };
      let isOpen = false;
      const end = (): void => {
        guest.unheard.delete(begun);
        if (isOpen) guest.openCalls -= 1;
        isOpen = false;
      };
      return new ServerInterceptingCall(call, {
        start: (next) =>
          next({
            // Those that the gate refuses never come here.
            onReceiveMetadata: (metadata, pass) => {
              if (!this.#isIn(call.getPeer(), guest)) return;
              isOpen = true;
              guest.openCalls += 1;
              guest.unheard.add(begun);
              pass(metadata);
            },
            onReceiveMessage: (message: unknown, pass) => {
              guest.unheard.delete(begun);
              pass(message);
            },
            onCancel: end,
          }),
        sendStatus: (status, next) => {
          end();
          next(status);
        },
      });
    };
  }

  close(): void {
    clearInterval(this.#sweeping);
  }

  #sweep(): void {
    for (const guest of this.#byPeer.values()) {
      const { socket, openCalls, calls } = guest;
      const bytes = socket.bytesRead - guest.bytesRead;
      const [oldest] = guest.unheard;
      const isSilent = oldest !== undefined && nowMs() - oldest.sinceMs > CALL_IDLE_MS;
      const isNoise = calls === 0 && bytes > GUEST_IDLE_BYTES_MAX;
      if (isSilent || isNoise) {
        this.#onRefused();
        socket.destroy();
      }
      // What was sent by those under way is theirs, also when they end before the next sweep.
      guest.calls = openCalls;
      guest.bytesRead = socket.bytesRead;
    }
  }

  /** The first call of a connection takes its place. */
  #isIn(peer: string, guest: Guest): boolean {
    if (!guest.isIn && !this.#settle(peer)) {
      guest.socket.destroy();
      return false;
    }
    guest.isIn = true;
    return true;
  }
}
