// Owns the one port of a vault as TypeScript sees it: who calls comes here by descriptor, lanes and places stay in Rust.
import { closeSync } from "node:fs";
import { Socket } from "node:net";
import { createServer as createTlsServer } from "node:tls";
import type { Server as TlsServer } from "node:tls";
import { getSystemErrorName } from "node:util";
import { TierkvError, toTierkvError } from "../../errors.ts";
import { DOOR_DEADLINE_MS } from "../../limits-access.ts";
import {
  LANES_POLL_MS,
  VAULT_CONNECTIONS_MAX,
  VAULT_PEER_CONNECTIONS_MAX,
  VAULT_PEER_WAITING_MAX,
  VAULT_WAITING_MAX,
} from "../../limits.ts";
import {
  doorAdmit,
  doorClose,
  doorDrain,
  doorExpel,
  doorLeave,
  doorOpen,
  doorSettle,
  doorStatus,
} from "../../native.ts";
import type { DoorOptions, LaneServerTls } from "../../native.ts";
import { listenOn } from "../../socket-file.ts";
import { randomToken, sleep } from "../../time.ts";
import { ALPN, TLS_MIN_VERSION } from "../../wire/security.ts";
import type { Gate } from "../gate.ts";
import type { VaultSecurity } from "../identity.ts";

/** Where to listen: TCP, or `unix:/path` in `text`. */
export interface ListenAddress {
  readonly host: string;
  readonly port: number;
  readonly text: string;
}

const TOKEN_BYTES = 32;
const UNIX_PREFIX = "unix:";
/** Instead of a descriptor: the connection at this place was not let in in time, or gives way. */
const CUT = -1;

/** What happens to those who come. */
export interface Behind {
  store: number;
  maxRecordBytes: number;
  maxReservedBytes: number;
  /** Takes a connection of gRPC; over TLS when its handshake is done. */
  onSocket(socket: Socket): void;
  /** null: in the clear. */
  security: VaultSecurity | null;
  /** null: nobody is asked who he is. */
  gate: Gate | null;
}

export class VaultDoor {
  /** The real one: with the port the system chose for port 0. */
  readonly address: string;
  readonly #id: number;
  readonly #arrivals: Arrivals;
  readonly #stopListening: () => Promise<void>;
  #last: Readonly<Record<string, number>> = {};
  #isClosed = false;

  /** Throws ADDRESS_IN_USE or LISTEN_FAILED. */
  static async open(at: ListenAddress, behind: Behind): Promise<VaultDoor> {
    const arrivals = new Arrivals(behind, isUnix(at));
    const open = (address: string): { id: number; port?: number } => {
      const opened = doorOpen(behind.store, optionsOf(behind, address), arrivals.onCall);
      arrivals.id = opened.id;
      return opened;
    };
    if (!isUnix(at)) {
      const { id, port } = openTcp(at, open);
      const host = hostText(at.host);
      return new VaultDoor(id, `${host}:${port}`, arrivals, async () => {});
    }
    let id = 0;
    const listener = {
      listen: (path: string): Promise<void> => {
        ({ id } = open(`${UNIX_PREFIX}${path}`));
        return Promise.resolve();
      },
      close: (): void => {
        if (id !== 0) doorDrain(id);
      },
    };
    const path = at.text.slice(UNIX_PREFIX.length);
    const whenTaken = "stop that vault, or set another [vault] listen";
    const stop = await listenOn(listener, { path, key: "[vault] listen", whenTaken });
    return new VaultDoor(id, at.text, arrivals, stop);
  }

  private constructor(
    id: number,
    address: string,
    arrivals: Arrivals,
    stopListening: () => Promise<void>,
  ) {
    this.#id = id;
    this.address = address;
    this.#arrivals = arrivals;
    this.#stopListening = stopListening;
  }

  /** A token that opens the lanes of one client, soon; without `mayStore` they only read. */
  admit(mayStore: boolean, account: number): Buffer {
    const token = randomToken(TOKEN_BYTES);
    if (!this.#isClosed) doorAdmit(this.#id, token, mayStore, account);
    return token;
  }

  /** Cuts the lanes of one account, and those it might still open. */
  expel(account: number): void {
    if (!this.#isClosed) doorExpel(this.#id, account);
  }

  /** Whoever calls from there was let in; false: there is no place for him. */
  settle(peer: string): boolean {
    return !this.#isClosed && this.#arrivals.settle(peer);
  }

  /** Lanes open now. */
  get lanes(): number {
    return this.#isClosed ? 0 : doorStatus(this.#id).lanes;
  }

  /** Counters by the names of the vault's own. */
  counts(): Readonly<Record<string, number>> {
    if (!this.#isClosed) this.#last = doorStatus(this.#id).counts;
    return this.#last;
  }

  /** Accepts no more, and begins nothing new on lanes. */
  async stop(): Promise<void> {
    await this.#stopListening();
    if (!this.#isClosed) doorDrain(this.#id);
  }

  /** Resolves when what is under way on lanes has ended. */
  async idle(): Promise<void> {
    while (!this.#isClosed && doorStatus(this.#id).requests > 0) await sleep(LANES_POLL_MS);
  }

  /** Cuts every connection. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.counts();
    this.#isClosed = true;
    this.#arrivals.cut();
    doorClose(this.#id);
  }
}

/** Connections of gRPC from the door to the server, and back when they end. */
class Arrivals {
  id = 0;
  readonly #behind: Behind;
  readonly #isUnix: boolean;
  readonly #handshakes: TlsServer | null;
  readonly #places = new Map<string, number>();
  readonly #sockets = new Map<number, Socket>();
  #isCut = false;

  constructor(behind: Behind, isOfUnix: boolean) {
    const { security } = behind;
    this.#behind = behind;
    this.#isUnix = isOfUnix;
    this.#handshakes = security === null ? null : newHandshakes(security, behind);
  }

  readonly onCall = (place: number, fd: number): void => {
    if (fd === CUT) {
      this.#sockets.get(place)?.destroy();
      return;
    }
    const socket = socketOf(fd);
    if (this.#isCut) {
      socket?.destroy(); // Its place went with the door, and the core no longer knows that.
      return;
    }
    if (socket === null) {
      doorLeave(this.id, place);
      return;
    }
    const peer = `${socket.remoteAddress}:${socket.remotePort}`;
    this.#sockets.set(place, socket);
    this.#places.set(peer, place);
    socket.on("error", () => {});
    socket.once("close", () => {
      this.#sockets.delete(place);
      if (this.#places.get(peer) === place) this.#places.delete(peer);
      if (!this.#isCut) doorLeave(this.id, place);
    });
    // Its peer is of our own user, which the door has seen.
    if (this.#isUnix && !doorSettle(this.id, place)) {
      socket.destroy();
      return;
    }
    this.#behind.gate?.accept(socket);
    if (this.#handshakes === null) this.#behind.onSocket(socket);
    else this.#handshakes.emit("connection", socket);
  };

  settle(peer: string): boolean {
    const place = this.#places.get(peer);
    return place !== undefined && doorSettle(this.id, place);
  }

  cut(): void {
    this.#isCut = true;
    for (const socket of this.#sockets.values()) socket.destroy();
  }
}

/** null: it ended on its way. */
function socketOf(fd: number): Socket | null {
  try {
    return new Socket({ fd, readable: true, writable: true });
  } catch {
    closeSync(fd);
    return null;
  }
}

/** Certificates of clients are judged with their calls, so that all who are refused hear the same. */
function newHandshakes(security: VaultSecurity, { onSocket, gate }: Behind): TlsServer {
  const { certPem, keyPem, clientCaPem } = security;
  const asked = clientCaPem === null ? {} : { ca: clientCaPem, requestCert: true };
  const handshakes = createTlsServer({
    cert: certPem,
    key: keyPem,
    ...asked,
    rejectUnauthorized: false,
    minVersion: TLS_MIN_VERSION,
    ALPNProtocols: [...ALPN],
    handshakeTimeout: DOOR_DEADLINE_MS,
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
  return handshakes;
}

function optionsOf({ security, ...behind }: Behind, address: string): DoorOptions {
  const { maxRecordBytes, maxReservedBytes } = behind;
  return {
    address,
    maxRecordBytes,
    maxReservedBytes,
    ...(security === null ? {} : { tls: laneTls(security) }),
    settledMax: VAULT_CONNECTIONS_MAX,
    settledEachMax: VAULT_PEER_CONNECTIONS_MAX,
    waitingMax: VAULT_WAITING_MAX,
    waitingEachMax: VAULT_PEER_WAITING_MAX,
    deadlineMs: DOOR_DEADLINE_MS,
  };
}

/** Lanes are behind the same TLS; where tokens open the vault, the one of the hello is enough there. */
function laneTls({ certPem, keyPem, clientCaPem, tokens }: VaultSecurity): LaneServerTls {
  const isByCertificate = tokens === null && clientCaPem !== null;
  return { certPem, keyPem, ...(isByCertificate ? { clientCaPem } : {}) };
}

function openTcp<Opened>(
  { host, port, text }: ListenAddress,
  open: (at: string) => Opened,
): Opened {
  try {
    return open(`${hostText(host)}:${port}`);
  } catch (error) {
    const reason = namedReason(toTierkvError(error).message);
    if (reason.includes("EADDRINUSE")) {
      const fix = "stop that process or set another [vault] listen";
      throw new TierkvError("ADDRESS_IN_USE", { address: text, fix }, { cause: error });
    }
    const fix = "set [vault] listen to an address of this machine";
    throw new TierkvError("LISTEN_FAILED", { address: text, reason, fix }, { cause: error });
  }
}

/** With the system's name of its error, which is what people look for. */
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
