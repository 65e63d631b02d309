// Owns the listening socket of a vault: address texts, the cap on connections, and errors that say how to go on.
import { createServer } from "node:net";
import type { AddressInfo, Server, Socket } from "node:net";
import { TierkvError, toTierkvError } from "../errors.ts";
import { VAULT_CONNECTIONS_MAX } from "../limits.ts";
import { listenOn } from "../socket-file.ts";
import type { SocketPlace } from "../socket-file.ts";

/** Where to listen: TCP, or `unix:/path` in `text`. */
export interface ListenAddress {
  readonly host: string;
  readonly port: number;
  readonly text: string;
}

export interface Listener {
  /** The real one: with the port the system chose for port 0. */
  readonly address: string;
  /** Accepts no more; open connections stay. */
  stop(): Promise<void>;
  /** Cuts every open connection. */
  cut(): void;
}

const UNIX_PREFIX = "unix:";

export async function listen(
  at: ListenAddress,
  onSocket: (socket: Socket) => void,
  onRefused: () => void,
): Promise<Listener> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket));
    onSocket(socket);
  });
  server.maxConnections = VAULT_CONNECTIONS_MAX;
  server.on("drop", onRefused);
  const stop = isUnix(at) ? await listenOn(server, placeOf(at)) : await bind(server, at);
  return {
    address: boundText(server, at),
    stop,
    cut: () => {
      for (const socket of sockets) socket.destroy();
    },
  };
}

function placeOf(at: ListenAddress): SocketPlace {
  return {
    path: at.text.slice(UNIX_PREFIX.length),
    key: "[vault] listen",
    whenTaken: "stop that vault, or set another [vault] listen",
  };
}

/** Listens on TCP; returns how to stop that. */
function bind(server: Server, { host, port, text }: ListenAddress): Promise<() => Promise<void>> {
  const stop = (): Promise<void> => {
    server.close();
    return Promise.resolve();
  };
  return new Promise((resolve, reject) => {
    const onError = (error: NodeJS.ErrnoException): void => reject(listenError(error, text));
    server.once("error", onError);
    server.listen({ host, port }, () => {
      server.off("error", onError);
      resolve(stop);
    });
  });
}

function listenError(error: NodeJS.ErrnoException, address: string): TierkvError {
  if (error.code === "EADDRINUSE") {
    const fix = "stop that process or set another [vault] listen";
    return new TierkvError("ADDRESS_IN_USE", { address, fix }, { cause: error });
  }
  return new TierkvError(
    "LISTEN_FAILED",
    {
      address,
      reason: toTierkvError(error).message,
      fix: "set [vault] listen to an address of this machine",
    },
    { cause: error },
  );
}

function isUnix(at: ListenAddress): boolean {
  return at.text.startsWith(UNIX_PREFIX);
}

function boundText(server: Server, at: ListenAddress): string {
  if (isUnix(at)) return at.text;
  const { port } = server.address() as AddressInfo;
  return at.host.includes(":") ? `[${at.host}]:${port}` : `${at.host}:${port}`;
}

/** True when only this machine can connect. */
export function isLocal(at: ListenAddress): boolean {
  return isUnix(at) || at.host === "localhost" || at.host === "::1" || at.host.startsWith("127.");
}
