// Owns a plain TCP relay whose connections a test can cut, and a peer that accepts and stays silent.
import { once } from "node:events";
import { connect, createServer } from "node:net";
import type { AddressInfo, Server, Socket } from "node:net";
import { closeAfterTest } from "./vaults.ts";

export interface TcpPeer {
  readonly address: string;
  /** Bytes that came from the target. */
  passed(): number;
  /** Connections that the target has closed. */
  ended(): number;
  /** Resets every connection; new ones are taken. */
  cut(): void;
  close(): Promise<void>;
}

const TICK_MS = 20;

export interface Relay {
  /** Passes bytes both ways between this connection and the target. */
  adopt(socket: Socket): void;
  /** Resets every connection; new ones are taken. */
  cut(): void;
  /** Bytes that came from the target. */
  passed(): number;
  /** Connections that the target has closed. */
  ended(): number;
}

/** Relays connections that another server accepts; `slow` throttles bytes from the target. */
export function relayTo(target: { address: string }, slow?: { bytesPerTick: number }): Relay {
  const [host = "", port = ""] = target.address.split(":");
  const sockets = new Set<Socket>();
  let passed = 0;
  let ended = 0;
  const keep = (socket: Socket): void => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.once("close", () => sockets.delete(socket));
  };
  const cut = (): void => {
    for (const socket of sockets) socket.resetAndDestroy();
  };
  closeAfterTest({ close: cut });
  const adopt = (socket: Socket): void => {
    const other = connect(Number(port), host);
    for (const each of [socket, other]) keep(each);
    other.once("close", () => {
      if (!socket.destroyed) ended += 1;
      socket.destroy();
    });
    socket.pipe(other);
    if (slow === undefined) {
      other.on("data", ({ length }) => (passed += length));
      other.pipe(socket);
    } else {
      trickle(other, socket, slow.bytesPerTick, (bytes) => (passed += bytes));
    }
  };
  return { adopt, cut, passed: () => passed, ended: () => ended };
}

function trickle(
  from: Socket,
  to: Socket,
  bytesPerTick: number,
  onBytes: (bytes: number) => void,
): void {
  const timer = setInterval(() => {
    const data = (from.read(bytesPerTick) ?? from.read()) as Buffer | null;
    if (data === null) return;
    onBytes(data.length);
    to.write(data);
  }, TICK_MS);
  const end = (): void => {
    clearInterval(timer);
    from.destroy();
    to.destroy();
  };
  from.once("close", end);
  to.once("close", end);
}

/** Opens the same with its own port. */
export function openRelay(target: { address: string }): Promise<TcpPeer> {
  const relay = relayTo(target);
  return openPeer((socket) => relay.adopt(socket), relay);
}

/** Accepts connections and never sends a byte. */
export function openSilentPeer(): Promise<TcpPeer> {
  return openPeer((socket) => void socket.resume());
}

async function openPeer(
  onSocket: (socket: Socket) => void,
  { passed, ended }: Pick<Relay, "passed" | "ended"> = { passed: () => 0, ended: () => 0 },
): Promise<TcpPeer> {
  const sockets = new Set<Socket>();
  const server: Server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.once("close", () => sockets.delete(socket));
    onSocket(socket);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const cut = (): void => {
    for (const socket of sockets) socket.resetAndDestroy();
  };
  return closeAfterTest({
    address: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    cut,
    passed,
    ended,
    close: async () => {
      cut();
      if (!server.listening) return;
      server.close();
      await once(server, "close");
    },
  });
}
