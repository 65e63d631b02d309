// Owns the gate of a vault that other machines reach: every call shows a token or a client certificate before a byte of its body is read.
import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { ServerInterceptingCall } from "@grpc/grpc-js";
import type { Metadata, ServerInterceptingCallInterface, ServerInterceptor } from "@grpc/grpc-js";
import { TierkvError } from "../errors.ts";
import { AUTH_LINGER_MS, AUTH_TIMEOUT_MS } from "../limits-access.ts";
import type { VaultCounters } from "../metrics.ts";
import { isRole, mayDo } from "../roles.ts";
import type { Role } from "../roles.ts";
import { roleNeeded } from "../wire/roles.ts";
import { takeToken } from "../wire/security.ts";
import { toGrpcStatus } from "../wire/status.ts";
import { Attempts } from "./attempts.ts";
import type { AuditLog } from "./audit.ts";
import type { TokenFile } from "./tokens.ts";

/** A client certificate of our CA that names no role. */
const CERTIFICATE_ROLE: Role = "write";

export interface GateOptions {
  /** null: client certificates alone open the vault. */
  tokens: TokenFile | null;
  audit: AuditLog;
  counters: VaultCounters;
}

/** Who made a call. */
export interface Caller {
  role: Role;
  /** Address and port. */
  peer: string;
}

/** Of calls that were let in; a handler finds its own by the metadata it was given. */
const CALLERS = new WeakMap<Metadata, Caller>();

/** A vault without a gate is reached by its own user alone, or by everybody because somebody wanted that. */
export function callerOf(call: { metadata: Metadata; getPeer(): string }): Caller {
  return CALLERS.get(call.metadata) ?? { role: "admin", peer: call.getPeer() };
}

interface Guest {
  socket: Socket;
  timer: NodeJS.Timeout;
  /** What is wrong with the certificate that came; null: nothing, or none came. */
  flaw: string | null;
}

export class Gate {
  readonly #options: GateOptions;
  readonly #attempts = new Attempts();
  /** Connections by peer, with what ends those that bring nothing. */
  readonly #guests = new Map<string, Guest>();

  constructor(options: GateOptions) {
    this.#options = options;
  }

  /** Takes a new connection, before its TLS; false: it is not to be served. */
  accept(socket: Socket): boolean {
    const { remoteAddress = "", remotePort = 0 } = socket;
    if (this.#attempts.isSpent(remoteAddress)) {
      this.#options.counters.add("peers_limited");
      return false;
    }
    const peer = `${remoteAddress}:${remotePort}`;
    const timer = setTimeout(() => socket.destroy(), AUTH_TIMEOUT_MS);
    this.#guests.set(peer, { socket, timer, flaw: null });
    socket.once("close", () => {
      clearTimeout(timer);
      this.#guests.delete(peer);
    });
    return true;
  }

  /** A connection did not get through its TLS handshake. */
  handshakeFailed(address: string, reason: string): void {
    this.#fail({ address, peer: address, call: "TLS handshake" }, reason);
  }

  /** The handshake is done; a certificate that does not hold is written down with the calls that come on it. */
  greeted(socket: TLSSocket): void {
    const guest = this.#guests.get(`${socket.remoteAddress}:${socket.remotePort}`);
    // Node's types say Error; it is the code of OpenSSL.
    const flaw = socket.authorizationError as unknown;
    const hasOne = Object.keys(socket.getPeerCertificate()).length > 0;
    if (guest !== undefined && hasOne && typeof flaw === "string") guest.flaw = flaw;
  }

  readonly interceptor: ServerInterceptor = (method, call) => {
    const judge = (metadata: Metadata): TierkvError | null =>
      this.#judge(method.path, call, metadata);
    return new ServerInterceptingCall(call, {
      start: (next) =>
        next({
          onReceiveMetadata: (metadata, pass) => {
            const refusal = judge(metadata);
            if (refusal === null) pass(metadata);
            else refuse(call, refusal);
          },
        }),
    });
  };

  #judge(
    path: string,
    call: ServerInterceptingCallInterface,
    metadata: Metadata,
  ): TierkvError | null {
    const { remoteAddress: address = "" } = call.getConnectionInfo();
    const peer = call.getPeer();
    const from = { address, peer, call: path.slice(path.lastIndexOf("/") + 1) };
    const needed = roleNeeded(path);
    const token = takeToken(metadata);
    const role = this.#roleOf(call, token);
    if (role === null || needed === null) {
      this.#fail(from, this.#reason(peer, token));
      return new TierkvError("STRANGER", {});
    }
    this.#letIn(peer);
    const { audit, counters } = this.#options;
    if (!mayDo(role, needed)) {
      counters.add("calls_denied");
      audit.record("role_missing", { peer, call: from.call, role, needed });
      return new TierkvError("ROLE_MISSING", { role, call: from.call, needed });
    }
    CALLERS.set(metadata, { role, peer });
    return null;
  }

  #roleOf(call: ServerInterceptingCallInterface, token: string | null): Role | null {
    if (token !== null) return this.#options.tokens?.roleOf(token) ?? null;
    const certificate = call.getAuthContext().sslPeerCertificate;
    if (certificate === undefined) return null;
    const { OU: unit } = certificate.subject as { OU?: string };
    if (unit === undefined) return CERTIFICATE_ROLE;
    return isRole(unit) ? unit : null;
  }

  /** For the audit log; the peer hears less. */
  #reason(peer: string, token: string | null): string {
    if (token !== null) return "a token that is not one of the vault's";
    const flaw = this.#guests.get(peer)?.flaw ?? null;
    return flaw === null ? "no token, and no certificate of a known role" : `certificate: ${flaw}`;
  }

  #letIn(peer: string): void {
    clearTimeout(this.#guests.get(peer)?.timer);
  }

  #fail(from: { address: string; peer: string; call: string }, reason: string): void {
    const { audit, counters } = this.#options;
    const { address, peer, call } = from;
    counters.add("calls_unauthenticated");
    audit.record("auth_failed", { peer, call, reason });
    if (!this.#attempts.failed(address)) return;
    audit.record("peer_limited", { peer });
    const { socket } = this.#guests.get(peer) ?? {};
    if (socket !== undefined) setTimeout(() => socket.destroy(), AUTH_LINGER_MS);
  }
}

/** Answers, and resets the stream: what its peer goes on to send is not even counted against our window. */
function refuse(call: ServerInterceptingCallInterface, refusal: TierkvError): void {
  call.sendStatus(toGrpcStatus(refusal));
  const { stream } = call as { stream?: { close(code: number): void } };
  stream?.close(0);
}
