// Owns the gate of a vault: every call needs a token or client certificate before its body is read.
import { X509Certificate } from "node:crypto";
import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { ServerInterceptingCall } from "@grpc/grpc-js";
import type { Metadata, ServerInterceptingCallInterface, ServerInterceptor } from "@grpc/grpc-js";
import { TierkvError } from "../../base/errors.ts";
import { AUTH_FAILURES_MAX, AUTH_LINGER_MS } from "../../base/limits/access.ts";
import type { VaultCounters } from "../../base/metrics.ts";
import { isRole, mayDo } from "../../base/roles.ts";
import type { Role } from "../../base/roles.ts";
import type { Gossip } from "../../discovery/gossip.ts";
import { GOSSIP_PATH, POOL_PATHS, REDEEM_PATH, roleNeeded } from "../../wire/roles.ts";
import { takeToken } from "../../wire/security.ts";
import { toGrpcStatus } from "../../wire/status.ts";
import { Attempts } from "./attempts.ts";
import type { AuditLog } from "./audit.ts";
import type { Member, Members } from "./members.ts";
import { refuse, reset } from "./refusals.ts";
import type { TokenFile } from "./tokens.ts";

/** Role of a client certificate that names none. */
const CERTIFICATE_ROLE: Role = "write";
/** Role of who shows the vault's own certificate: its user, who can read everything that the vault keeps. */
const OWNER_ROLE: Role = "admin";
/** Role of another vault of the pool; `write`, because a holder of the pool's key could sign such a machine anyway. */
const POOL_ROLE: Role = "write";

export interface GateOptions {
  /** The vault's own certificate; whoever proves to have its key is the vault's user. */
  certPem: Buffer;
  /** null: client certificates alone open the vault. */
  tokens: TokenFile | null;
  /** null: machines cannot join. */
  members: Members | null;
  /** Checks the pool's token; null: the vault belongs to no pool. */
  gossip: Gossip | null;
  audit: AuditLog;
  counters: VaultCounters;
}

/** The caller of a call, as the gate identified it. */
export interface Caller {
  role: Role;
  /** Address and port. */
  peer: string;
  /** Account of the machine whose credential was shown; 0: no machine's. */
  account: number;
  /** The invitation that admitted this call of Redeem; null: another call. */
  invitation: string | null;
}

/** The role and machine that a credential stands for. */
interface Known {
  role: Role;
  /** null: the credential belongs to no single machine. */
  member: Member | null;
}

/** Callers of admitted calls, by the metadata object that the handler also gets. */
const CALLERS = new WeakMap<Metadata, Caller>();

/** Returns the caller. Without a gate everyone is admin, because only this user reaches the vault or insecure_lan is set. */
export function callerOf(call: { metadata: Metadata; getPeer(): string }): Caller {
  const known = CALLERS.get(call.metadata);
  return known ?? { role: "admin", peer: call.getPeer(), account: 0, invitation: null };
}

interface Connection {
  socket: Socket;
  /** OpenSSL's complaint about the client's certificate; null: no fault, or no certificate. */
  flaw: string | null;
  /** True once its client has shown the vault's own certificate, and proved in the handshake to have the key. */
  isOwner: boolean;
  /** Accounts whose calls were admitted on it. */
  accounts: Set<number>;
  /** Failed attempts left before the connection is closed. */
  tries: number;
}

export class Gate {
  readonly #options: GateOptions;
  readonly #attempts = new Attempts();
  /** DER of the vault's own certificate, without others of its chain. */
  readonly #own: Buffer;
  /** Connections by peer. */
  readonly #connections = new Map<string, Connection>();

  constructor(options: GateOptions) {
    this.#options = options;
    this.#own = new X509Certificate(options.certPem).raw;
  }

  /** Takes a new connection before TLS. An address over its limit still gets one attempt, because machines may share it. */
  accept(socket: Socket): void {
    const { remoteAddress = "", remotePort = 0 } = socket;
    const isSpent = this.#attempts.isSpent(remoteAddress);
    if (isSpent) this.#options.counters.add("peers_limited");
    const tries = isSpent ? 1 : AUTH_FAILURES_MAX;
    const peer = `${remoteAddress}:${remotePort}`;
    this.#connections.set(peer, {
      socket,
      flaw: null,
      isOwner: false,
      accounts: new Set(),
      tries,
    });
    socket.once("close", () => this.#connections.delete(peer));
  }

  /** Counts a failed TLS handshake. */
  handshakeFailed(address: string, reason: string): void {
    this.#fail({ address, peer: address, call: "TLS handshake" }, reason);
  }

  /**
   * Notes after the handshake whether the client's certificate is the vault's own, which is no client's by its usage, or else
   * what is wrong with it; the audit log shows that with the calls it is refused for.
   */
  greeted(socket: TLSSocket): void {
    const connection = this.#connections.get(`${socket.remoteAddress}:${socket.remotePort}`);
    // An empty object where the client has shown none.
    const { raw } = socket.getPeerCertificate() as { raw?: Buffer };
    if (connection === undefined || raw === undefined) return;
    // Node types this as Error; in fact OpenSSL's code is in it.
    const flaw = socket.authorizationError as unknown;
    connection.isOwner = this.#own.equals(raw);
    if (typeof flaw === "string") connection.flaw = flaw;
  }

  /** Closes the connections of an account; the one of `peer` lingers, so that its call is answered. */
  expel(account: number, peer: string): void {
    for (const [name, { socket, accounts }] of this.#connections) {
      if (!accounts.has(account)) continue;
      if (name === peer) setTimeout(() => socket.destroy(), AUTH_LINGER_MS);
      else socket.destroy();
    }
  }

  readonly interceptor: ServerInterceptor = (method, call) => {
    const judge = (metadata: Metadata): TierkvError | null =>
      this.#judge(method.path, call, metadata);
    return new ServerInterceptingCall(call, {
      start: (next) => {
        // The connection is about to close, so nothing more is judged.
        if (this.#connections.get(call.getPeer())?.tries === 0) {
          reset(call);
          return;
        }
        next({
          onReceiveMetadata: (metadata, pass) => {
            const refusal = judge(metadata);
            if (refusal === null) pass(metadata);
            else refuse(call, toGrpcStatus(refusal));
          },
        });
      },
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
    const token = takeToken(metadata);
    if (this.#isForThatAlone(path, token)) {
      const isVault = POOL_PATHS.has(path);
      const role = isVault ? POOL_ROLE : "read";
      CALLERS.set(metadata, { role, peer, account: 0, invitation: isVault ? null : token });
      return null;
    }
    const needed = roleNeeded(path);
    const known = this.#whoIs(call, token);
    if (known === null || path === REDEEM_PATH || path === GOSSIP_PATH) {
      this.#fail(from, this.#reason(peer, token));
      return new TierkvError("STRANGER", {});
    }
    const { role, member } = known;
    this.#letIn(from, member);
    const { audit, counters } = this.#options;
    if (needed !== null && !mayDo(role, needed)) {
      counters.add("calls_denied");
      audit.record("role_missing", { peer, call: from.call, role, needed });
      return new TierkvError("ROLE_MISSING", { role, call: from.call, needed });
    }
    CALLERS.set(metadata, { role, peer, account: member?.account ?? 0, invitation: null });
    return null;
  }

  #whoIs(call: ServerInterceptingCallInterface, token: string | null): Known | null {
    if (token !== null) {
      const { tokens, members } = this.#options;
      const role = tokens?.roleOf(token) ?? null;
      if (role !== null) return { role, member: null };
      const member = members?.find(token) ?? null;
      return member === null ? null : { role: member.role, member };
    }
    const role = this.#roleShown(call);
    return role === null ? null : { role, member: null };
  }

  /** Role by the client's certificate; null: none was shown, or one of no known role. */
  #roleShown(call: ServerInterceptingCallInterface): Role | null {
    if (this.#connections.get(call.getPeer())?.isOwner === true) return OWNER_ROLE;
    const certificate = call.getAuthContext().sslPeerCertificate;
    if (certificate === undefined) return null;
    const { OU: unit } = certificate.subject as { OU?: string };
    if (unit === undefined) return CERTIFICATE_ROLE;
    return isRole(unit) ? unit : null;
  }

  /** Reason for the audit log; the peer is told less. */
  #reason(peer: string, token: string | null): string {
    if (token !== null) return "a token that is not one of the vault's";
    const flaw = this.#connections.get(peer)?.flaw ?? null;
    return flaw === null ? "no token, and no certificate of a known role" : `certificate: ${flaw}`;
  }

  /** Whether the token opens this call only: an invitation for Redeem, or the pool's token for its calls. */
  #isForThatAlone(path: string, token: string | null): boolean {
    if (token === null) return false;
    const { members, gossip } = this.#options;
    if (path === REDEEM_PATH) return members?.isInvited(token) === true;
    return POOL_PATHS.has(path) && gossip?.isToken(token) === true;
  }

  #letIn({ address, peer }: { address: string; peer: string }, member: Member | null): void {
    const connection = this.#connections.get(peer);
    if (member === null) return;
    connection?.accounts.add(member.account);
    this.#options.members?.seen(member, address);
  }

  #fail(from: { address: string; peer: string; call: string }, reason: string): void {
    const { audit, counters } = this.#options;
    const { address, peer, call } = from;
    counters.add("calls_unauthenticated");
    audit.record("auth_failed", { peer, call, reason });
    this.#attempts.failed(address);
    const connection = this.#connections.get(peer);
    if (connection === undefined || connection.tries === 0) return;
    connection.tries -= 1;
    if (connection.tries > 0) return;
    audit.record("peer_limited", { peer });
    setTimeout(() => connection.socket.destroy(), AUTH_LINGER_MS);
  }
}
