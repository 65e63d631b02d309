// Owns the closing of gRPC connections that send bytes without calls, or calls without messages.
import type { Socket } from "node:net";
import { ServerInterceptingCall } from "@grpc/grpc-js";
import type { ServerInterceptor } from "@grpc/grpc-js";
import {
  CONNECTION_IDLE_BYTES_MAX,
  CONNECTION_SWEEP_MS,
  CALL_IDLE_MS,
} from "../../base/limits/general.ts";
import { nowMs } from "../../base/time.ts";

/** One connection and its counts since the last sweep; `calls` are those open at any time since. */
interface Connection {
  readonly socket: Socket;
  /** Whether the gate admitted one of its calls. */
  isIn: boolean;
  /** Start times of calls that have received no message yet, oldest first. */
  readonly unheard: Set<{ readonly sinceMs: number }>;
  openCalls: number;
  calls: number;
  bytesRead: number;
}

/** TCP connections only; the listener just counts Unix-socket connections, because they come from this machine. */
export class ConnectionActivity {
  readonly #byPeer = new Map<string, Connection>();
  readonly #settle: (peer: string) => boolean;
  readonly #onRefused: () => void;
  readonly #sweeping: NodeJS.Timeout;

  /** `settle` returns whether the listener has room for a connection whose first call was admitted. */
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
            // Calls that the gate refuses never get here.
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
      // Bytes of calls still open are attributed to them, even if they end before the next sweep.
      connection.calls = openCalls;
      connection.bytesRead = socket.bytesRead;
    }
  }

  /** Reserves the connection's place at its first admitted call; closes it where there is no room. */
  #isIn(peer: string, connection: Connection): boolean {
    if (!connection.isIn && !this.#settle(peer)) {
      connection.socket.destroy();
      return false;
    }
    connection.isIn = true;
    return true;
  }
}
