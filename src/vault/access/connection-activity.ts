// Owns who may stay connected to a vault over gRPC: those that call, and do little else.
import type { Socket } from "node:net";
import { ServerInterceptingCall } from "@grpc/grpc-js";
import type { ServerInterceptor } from "@grpc/grpc-js";
import {
  CONNECTION_IDLE_BYTES_MAX,
  CONNECTION_SWEEP_MS,
  CALL_IDLE_MS,
} from "../../limits/general.ts";
import { nowMs } from "../../time.ts";

/** One connection, and what it did since the last sweep; `calls`: those that were open at any moment of that time. */
interface Connection {
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
export class ConnectionActivity {
  readonly #byPeer = new Map<string, Connection>();
  readonly #settle: (peer: string) => boolean;
  readonly #onRefused: () => void;
  readonly #sweeping: NodeJS.Timeout;

  /** `settle` says whether there is a place for one whose first call was let in. */
  constructor(settle: (peer: string) => boolean, onRefused: () => void) {
    this.#settle = settle;
    this.#onRefused = onRefused;
    this.#sweeping = setInterval(() => this.#sweep(), CONNECTION_SWEEP_MS);
    this.#sweeping.unref();
  }

  /** Watches a connection until it closes. */
  watch(socket: Socket): void {
    const { remoteAddress: host, remotePort: port } = socket;
    if (host === undefined || port === undefined) return;
    const counts = { isIn: false, openCalls: 0, calls: 0, bytesRead: 0 };
    const connection: Connection = { socket, unheard: new Set(), ...counts };
    const peer = `${host}:${port}`;
    this.#byPeer.set(peer, connection);
    socket.once("close", () => {
      if (this.#byPeer.get(peer) === connection) this.#byPeer.delete(peer);
    });
  }

  /** Sees every call begin and end. */
  get interceptor(): ServerInterceptor {
    return (_method, call) => {
      const connection = this.#byPeer.get(call.getPeer());
      if (connection === undefined) return new ServerInterceptingCall(call);
      connection.calls += 1;
      const begun = { sinceMs: nowMs() };
      let isOpen = false;
      const end = (): void => {
        connection.unheard.delete(begun);
        if (isOpen) connection.openCalls -= 1;
        isOpen = false;
      };
      return new ServerInterceptingCall(call, {
        start: (next) =>
          next({
            // Those that the gate refuses never come here.
            onReceiveMetadata: (metadata, pass) => {
              if (!this.#isIn(call.getPeer(), connection)) return;
              isOpen = true;
              connection.openCalls += 1;
              connection.unheard.add(begun);
              pass(metadata);
            },
            onReceiveMessage: (message: unknown, pass) => {
              connection.unheard.delete(begun);
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
    for (const connection of this.#byPeer.values()) {
      const { socket, openCalls, calls } = connection;
      const bytes = socket.bytesRead - connection.bytesRead;
      const [oldest] = connection.unheard;
      const isSilent = oldest !== undefined && nowMs() - oldest.sinceMs > CALL_IDLE_MS;
      const isNoise = calls === 0 && bytes > CONNECTION_IDLE_BYTES_MAX;
      if (isSilent || isNoise) {
        this.#onRefused();
        socket.destroy();
      }
      // What was sent by those under way is theirs, also when they end before the next sweep.
      connection.calls = openCalls;
      connection.bytesRead = socket.bytesRead;
    }
  }

  /** The first call of a connection takes its place. */
  #isIn(peer: string, connection: Connection): boolean {
    if (!connection.isIn && !this.#settle(peer)) {
      connection.socket.destroy();
      return false;
    }
    connection.isIn = true;
    return true;
  }
}
