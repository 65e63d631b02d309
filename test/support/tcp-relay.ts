// Owns a plain TCP relay whose connections a test can cut, and a peer that accepts and says nothing.
import { once } from "node:events";
import { connect, createServer } from "node:net";
import type { AddressInfo, Server, Socket } from "node:net";
import { closeAfterTest } from "./vaults.ts";

export interface TcpPeer {
  readonly address: string;
  /** Resets every connection; new ones are taken. */
  cut(): void;
  close(): Promise<void>;
}

const TICK_MS = 20;

/** Passes bytes both ways between whoever connects and `target`; those from it only so many at a time where that is asked. */
export function openRelay(
  target: { address: string },
  slow?: { bytesPerTick: number },
): Promise<TcpPeer> {
  const [host = "", port = ""] = target.address.split(":");
  return openPeer((socket, adopt) => {
    const other = adopt(connect(Number(port), host));
    socket.pipe(other);
    if (slow === undefined) other.pipe(socket);
    else trickle(other, socket, slow.bytesPerTick);
  });
}

function trickle(from: Socket, to: Socket, bytesPerTick: number): void {
  const timer = setInterval(() => {
    const data = (from.read(bytesPerTick) ?? from.read()) as Buffer | null;
    if (data !== null) to.write(data);
  }, TICK_MS);
  const end = (): void => {
    clearInterval(timer);
    from.destroy();
    to.destroy();
  };
  from.once("close", end);
  to.once("close", end);
}

/** Accepts connections and never answers a byte. */
export function openSilentPeer(): Promise<TcpPeer> {
  return openPeer((socket) => void socket.resume());
}

type Adopt = (socket: Socket) => Socket;

async function openPeer(onSocket: (socket: Socket, adopt: Adopt) => void): Promise<TcpPeer> {
  const sockets = new Set<Socket>();
  const adopt: Adopt = (socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.once("close", () => sockets.delete(socket));
    return socket;
  };
  const server: Server = createServer((socket) => onSocket(adopt(socket), adopt));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const cut = (): void => {
    for (const socket of sockets) socket.resetAndDestroy();
  };
  return closeAfterTest({
    address: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    cut,
    close: async () => {
      cut();
      if (!server.listening) return;
      server.close();
      await once(server, "close");
    },
  });
}
