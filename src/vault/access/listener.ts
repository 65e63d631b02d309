// Owns the one port of a vault as TypeScript sees it: gRPC connections arrive as descriptors, lanes stay in Rust.
import { X509Certificate } from "node:crypto";
import { closeSync } from "node:fs";
import { Socket } from "node:net";
import { createServer as createTlsServer } from "node:tls";
import type { Server as TlsServer } from "node:tls";
import { getSystemErrorName } from "node:util";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { LISTENER_DEADLINE_MS } from "../../base/limits/access.ts";
import {
  LISTENER_POLL_MS,
  VAULT_CONNECTIONS_MAX,
  VAULT_PEER_CONNECTIONS_MAX,
  VAULT_PEER_WAITING_MAX,
  VAULT_WAITING_MAX,
} from "../../base/limits/general.ts";
import {
  listenerAdmit,
  listenerClose,
  listenerDrain,
  listenerExpel,
  listenerLeave,
  listenerOpen,
  listenerSettle,
  listenerSpans,
  listenerStatus,
} from "../../base/native.ts";
import type {
  LaneServerTls,
  LaneSpans,
  ListenerId,
  ListenerOptions,
  StoreId,
} from "../../base/native.ts";
import { listenOn } from "../../base/socket-file.ts";
import { randomToken, sleep } from "../../base/time.ts";
import { ALPN, TLS_MIN_VERSION } from "../../wire/security.ts";
import type { Gate } from "./gate.ts";
import type { VaultSecurity } from "./identity.ts";

export const NO_SPANS: LaneSpans = { spans: [], dropped: 0 };

/** Where to listen: TCP, or `unix:/path` in `text`. */
export interface ListenAddress {
  readonly host: string;
  readonly port: number;
  readonly text: string;
}

const EVERYWHERE = /^(?:0\.0\.0\.0|::)$/;
const TOKEN_BYTES = 32;
const UNIX_PREFIX = "unix:";
/** Passed instead of a descriptor when a connection was not admitted in time, or must make room. */
const CUT = -1;
/** No listener yet: real ids begin at 1. */
const NONE = 0 as ListenerId;

/** Options and callbacks for incoming connections. */
export interface ListenerHandlers {
  store: StoreId;
  maxRecordBytes: number;
  maxReservedBytes: number;
  /** Takes a gRPC connection, after its handshake where it uses TLS. */
  onSocket(socket: Socket): void;
  /** null: plaintext. */
  security: VaultSecurity | null;
  /** null: callers are not authenticated. */
  gate: Gate | null;
  /** Whether requests with a trace context become spans. */
  traces: boolean;
}

export class VaultListener {
  /** The bound address, with the port that the system chose for port 0. */
  readonly address: string;
  /** Further addresses, which Hello reports to clients. */
  readonly addresses: readonly string[];
  readonly #id: ListenerId;
  readonly #arrivals: Arrivals;
  readonly #stopListening: () => Promise<void>;
  #last: Readonly<Record<string, number>> = {};
  #spansLeft: LaneSpans = NO_SPANS;
  #isClosed = false;

  /** Listens at `at` and `addresses`; Hello reports the latter to clients. Throws ADDRESS_IN_USE or LISTEN_FAILED. */
  static async open(
    at: ListenAddress,
    handlers: ListenerHandlers,
    addresses: readonly ListenAddress[] = [],
  ): Promise<VaultListener> {
    // A listener on every interface already covers further addresses with the same port.
    const isElsewhere = ({ port }: ListenAddress): boolean =>
      !EVERYWHERE.test(at.host) || port !== at.port;
    const also = addresses.filter(isElsewhere).map(({ text }) => text);
    const arrivals = new Arrivals(handlers, isUnix(at));
    const open = (address: string): { id: ListenerId; port?: number } => {
      const options = { ...optionsOf(handlers, address), also };
      const opened = listenerOpen(handlers.store, options, arrivals.onCall);
      arrivals.id = opened.id;
      return opened;
    };
    if (!isUnix(at)) {
      const { id, port } = openTcp(at, open, addresses);
      const host = hostText(at.host);
      const told = addresses.map(({ text }) => text);
      return new VaultListener(id, `${host}:${port}`, arrivals, async () => {}, told);
    }
    let id = NONE;
    const listener = {
      listen: (path: string): Promise<void> => {
        ({ id } = open(`${UNIX_PREFIX}${path}`));
        return Promise.resolve();
      },
      close: (): void => {
        if (id !== NONE) listenerDrain(id);
      },
    };
    const path = at.text.slice(UNIX_PREFIX.length);
    const whenTaken = "stop that vault, or set another [vault] listen";
    const stop = await listenOn(listener, { path, key: "[vault] listen", whenTaken });
    return new VaultListener(id, at.text, arrivals, stop);
  }

  private constructor(
    id: ListenerId,
    address: string,
    arrivals: Arrivals,
    stopListening: () => Promise<void>,
    addresses: readonly string[] = [],
  ) {
    this.addresses = addresses;
    this.#id = id;
    this.address = address;
    this.#arrivals = arrivals;
    this.#stopListening = stopListening;
  }

  /** Returns a short-lived token for the lanes of one client; without `mayStore` they only read. */
  admit(mayStore: boolean, account: number): Buffer {
    const token = randomToken(TOKEN_BYTES);
    if (!this.#isClosed) listenerAdmit(this.#id, token, mayStore, account);
    return token;
  }

  /** Cuts the lanes of one account and revokes its unused lane tokens. */
  expel(account: number): void {
    if (!this.#isClosed) listenerExpel(this.#id, account);
  }

  /** Marks the peer's connection as admitted; false when there is no room for it. */
  settle(peer: string): boolean {
    return !this.#isClosed && this.#arrivals.settle(peer);
  }

  /** Lanes open now. */
  get lanes(): number {
    return this.#isClosed ? 0 : listenerStatus(this.#id).lanes;
  }

  /** Counters, under the same names as the vault's own. */
  counts(): Readonly<Record<string, number>> {
    if (!this.#isClosed) this.#last = listenerStatus(this.#id).counts;
    return this.#last;
  }

  /** Spans that ended since the last call; once closed, the spans left over. */
  spans(): LaneSpans {
    if (!this.#isClosed) return listenerSpans(this.#id);
    const left = this.#spansLeft;
    this.#spansLeft = NO_SPANS;
    return left;
  }

  /** Stops accepting connections and new lane requests. */
  async stop(): Promise<void> {
    await this.#stopListening();
    if (!this.#isClosed) listenerDrain(this.#id);
  }

  /** Resolves when the open lane requests have ended, and their last bytes were sent. */
  async idle(): Promise<void> {
    const isBusy = (): boolean => {
      const { requests, sending } = listenerStatus(this.#id);
      return requests + sending > 0;
    };
    while (!this.#isClosed && isBusy()) await sleep(LISTENER_POLL_MS);
  }

  /** Cuts every connection. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.counts();
    this.#spansLeft = this.spans();
    this.#isClosed = true;
    this.#arrivals.cut();
    listenerClose(this.#id);
  }
}

/** Passes gRPC connections from the listener to the server, and reports their end to the listener. */
class Arrivals {
  id = NONE;
  readonly #handlers: ListenerHandlers;
  readonly #isUnix: boolean;
  readonly #handshakes: TlsServer | null;
  readonly #connections = new Map<string, number>();
  readonly #sockets = new Map<number, Socket>();
  #isCut = false;

  constructor(handlers: ListenerHandlers, isOfUnix: boolean) {
    const { security } = handlers;
    this.#handlers = handlers;
    this.#isUnix = isOfUnix;
    this.#handshakes = security === null ? null : newHandshakes(security, handlers);
  }

  readonly onCall = (connection: number, fd: number): void => {
    if (fd === CUT) {
      this.#sockets.get(connection)?.destroy();
      return;
    }
    const socket = socketOf(fd);
    if (this.#isCut) {
      socket?.destroy(); // The closed listener no longer counts this connection.
      return;
    }
    if (socket === null) {
      listenerLeave(this.id, connection);
      return;
    }
    const peer = `${socket.remoteAddress}:${socket.remotePort}`;
    this.#sockets.set(connection, socket);
    this.#connections.set(peer, connection);
    socket.on("error", () => {});
    socket.once("close", () => {
      this.#sockets.delete(connection);
      if (this.#connections.get(peer) === connection) this.#connections.delete(peer);
      if (!this.#isCut) listenerLeave(this.id, connection);
    });
    // Unix peers are admitted at once, because the listener has checked that they run as our user.
    if (this.#isUnix && !listenerSettle(this.id, connection)) {
      socket.destroy();
      return;
    }
    this.#handlers.gate?.accept(socket);
    if (this.#handshakes === null) this.#handlers.onSocket(socket);
    else this.#handshakes.emit("connection", socket);
  };

  settle(peer: string): boolean {
    const connection = this.#connections.get(peer);
    return connection !== undefined && listenerSettle(this.id, connection);
  }

  cut(): void {
    this.#isCut = true;
    for (const socket of this.#sockets.values()) socket.destroy();
  }
}

/** null when the connection ended before it got here. */
function socketOf(fd: number): Socket | null {
  try {
    return new Socket({ fd, readable: true, writable: true });
  } catch {
    closeSync(fd);
    return null;
  }
}

/** Client certificates are judged with each call, so that every refused client gets the same answer. */
function newHandshakes(security: VaultSecurity, { onSocket, gate }: ListenerHandlers): TlsServer {
  const { certPem, keyPem, clientCaPem } = security;
  const asked = clientCaPem === null ? {} : { ca: clientCaPem, requestCert: true };
  const handshakes = createTlsServer({
    cert: certPem,
    key: keyPem,
    ...asked,
    rejectUnauthorized: false,
    minVersion: TLS_MIN_VERSION,
    ALPNProtocols: [...ALPN],
    handshakeTimeout: LISTENER_DEADLINE_MS,
  });
  handshakes.on("secureConnection", (socket) => {
    gate?.greeted(socket);
    onSocket(socket);
  });
  handshakes.on("tlsClientError", (error: NodeJS.ErrnoException, socket) => {
    // A reset is a port probe, not a failed login.
    if (error.code !== "ECONNRESET")
      gate?.handshakeFailed(socket.remoteAddress ?? "", toTierkvError(error).message);
    socket.destroy();
  });
  return handshakes;
}

function optionsOf({ security, ...handlers }: ListenerHandlers, address: string): ListenerOptions {
  const { maxRecordBytes, maxReservedBytes, traces } = handlers;
  return {
    traces,
    address,
    maxRecordBytes,
    maxReservedBytes,
    ...(security === null ? {} : { tls: laneTls(security) }),
    settledMax: VAULT_CONNECTIONS_MAX,
    settledEachMax: VAULT_PEER_CONNECTIONS_MAX,
    waitingMax: VAULT_WAITING_MAX,
    waitingEachMax: VAULT_PEER_WAITING_MAX,
    deadlineMs: LISTENER_DEADLINE_MS,
  };
}

/**
 * Lanes use the same TLS, but no client certificate where tokens open the vault: Hello's lane token suffices. Where certificates
 * alone do, the vault's own is its user's, so it counts among those of clients, without the others of its chain.
 */
function laneTls({ certPem, keyPem, clientCaPem, tokens }: VaultSecurity): LaneServerTls {
  if (tokens !== null || clientCaPem === null) return { certPem, keyPem };
  const own = Buffer.from(new X509Certificate(certPem).toString());
  return { certPem, keyPem, clientCaPem: Buffer.concat([clientCaPem, Buffer.from("\n"), own]) };
}

function openTcp<Opened>(
  { host, port, text }: ListenAddress,
  open: (at: string) => Opened,
  further: readonly ListenAddress[],
): Opened {
  try {
    return open(`${hostText(host)}:${port}`);
  } catch (error) {
    const reason = namedReason(toTierkvError(error).message);
    const other = further.find((one) => reason.includes(`listening on ${one.text}:`));
    const address = other?.text ?? text;
    const key = `[vault] ${other === undefined ? "listen" : "addresses"}`;
    if (reason.includes("EADDRINUSE")) {
      const fix = `stop that process or set another ${key}`;
      throw new TierkvError("ADDRESS_IN_USE", { address, fix }, { cause: error });
    }
    const fix =
      other === undefined
        ? `set ${key} to an address of this machine`
        : `correct ${key}, or take it out there: this machine has no such address`;
    throw new TierkvError("LISTEN_FAILED", { address, reason, fix }, { cause: error });
  }
}

/** Adds the system's error name, because operators search for it. */
function namedReason(reason: string): string {
  const number = /os error (\d+)/.exec(reason)?.[1];
  return number === undefined ? reason : `${getSystemErrorName(-Number(number))}: ${reason}`;
}

function isUnix(at: ListenAddress): boolean {
  return at.text.startsWith(UNIX_PREFIX);
}

function hostText(host: string): string {
  return host.includes(":") ? `[${host}]` : host;
}
