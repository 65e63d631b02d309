// Owns the listening socket of a vault: address texts, TLS, the cap on connections, and errors that say how to go on.
import { createServer } from "node:net";
import type { AddressInfo, Server, Socket } from "node:net";
import { createServer as createTlsServer } from "node:tls";
import { TierkvError, toTierkvError } from "../errors.ts";
import { TLS_HANDSHAKE_MS } from "../limits-access.ts";
import { VAULT_CONNECTIONS_MAX } from "../limits.ts";
import { isOwnPeer, listenOn } from "../socket-file.ts";
import type { SocketPlace } from "../socket-file.ts";
import { ALPN, TLS_MIN_VERSION } from "../wire/security.ts";
import type { Gate } from "./gate.ts";
import type { VaultSecurity } from "./identity.ts";
import { Shares } from "./shares.ts";

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

/** What happens to those who come. */
export interface Door {
  /** Takes a connection; over TLS when its handshake is done. */
  onSocket(socket: Socket): void;
  onRefused(): void;
  /** null: in the clear. */
  security: VaultSecurity | null;
  /** null: nobody is asked who he is. */
  gate: Gate | null;
}

export async function listen(at: ListenAddress, door: Door): Promise<Listener> {
  const sockets = new Set<Socket>();
  const { security, onRefused } = door;
  const serve = security === null ? openly(at, door) : overTls(security, door);
  const shares = new Shares();
  const server = createServer((socket) => {
    if (shares.admit(socket) && serve(socket)) return;
    onRefused();
    socket.destroy();
  });
  server.prependListener("connection", (socket: Socket) => {
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket));
  });
  server.maxConnections = VAULT_CONNECTIONS_MAX;
  server.on("drop", () => onRefused());
  const stop = isUnix(at) ? await listenOn(server, placeOf(at)) : await bind(server, at);
  return {
    address: boundText(server, at),
    stop,
    cut: () => {
      for (const socket of sockets) socket.destroy();
    },
  };
}

/** Takes a connection; false: it is not to be served. */
type Serve = (socket: Socket) => boolean;

/** In the clear; a Unix socket serves its own user alone. */
function openly(at: ListenAddress, { onSocket }: Door): Serve {
  return (socket) => {
    if (isUnix(at) && !isOwnPeer(socket)) return false;
    onSocket(socket);
    return true;
  };
}

/** Certificates of clients are judged with their calls, so that all who are refused hear the same. */
function overTls(security: VaultSecurity, { onSocket, gate }: Door): Serve {
  const { certPem, keyPem, clientCaPem } = security;
  const asked = clientCaPem === null ? {} : { ca: clientCaPem, requestCert: true };
  const handshakes = createTlsServer({
    cert: certPem,
    key: keyPem,
    ...asked,
    rejectUnauthorized: false,
    minVersion: TLS_MIN_VERSION,
    ALPNProtocols: [...ALPN],
    handshakeTimeout: TLS_HANDSHAKE_MS,
  });
  handshakes.on("secureConnection", (socket) => {
    gate?.greeted(socket);
    onSocket(socket);
  });
  handshakes.on("tlsClientError", (error: NodeJS.ErrnoException, socket) => {
    // Who only looked whether somebody listens has not tried to come in.
    if (error.code !== "ECONNRESET")
      gate?.handshakeFailed(socket.remoteAddress ?? "", toTierkvError(error).message);
    socket.destroy();
  });
  return (socket) => {
    if (gate?.accept(socket) === false) return false;
    return handshakes.emit("connection", socket);
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
