// Owns the connection to one vault: channel, hello after each connect, breaker, and the frame around every call.
import type { RecordClass } from "../../base/block.ts";
import type { CancelSignal } from "../../base/cancellation.ts";
import type { ErrorCode } from "../../base/errors.ts";
import { TierkvError } from "../../base/errors.ts";
import {
  BREAKER_LATE_MS,
  CLIENT_CALLS_MAX,
  HELLO_TIMEOUT_MS,
  LANES_DEFAULT,
} from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import { Goodput } from "../../base/native.ts";
import type { LaneRail } from "../../base/native.ts";
import type { HelloReply } from "../../wire/messages.ts";
import type { ChannelSecurity } from "../../wire/security.ts";
import { vaultService } from "../../wire/service.ts";
import { fromGrpcError } from "../../wire/status.ts";
import type { CallContext } from "../../wire/status.ts";
import { Breaker } from "../breaker.ts";
import type { VaultState } from "../breaker.ts";
import { FlushFeed } from "../flush-feed.ts";
import { Attempt } from "./attempt.ts";
import { VaultChannel } from "./channel.ts";
import { checkHello, helloRequest, isAt } from "./hello.ts";
import { laneTls } from "./lane-options.ts";
import { Lanes } from "./lanes.ts";
import { isOver, Rails } from "./rails.ts";
import type { TriedRail } from "./rails.ts";
import { Retries } from "./retries.ts";

export interface VaultClientOptions {
  /** `host:port` or `unix:/path`. */
  address: string;
  /** The class of records this vault must hold. */
  name: RecordClass;
  logger: Logger;
  /** Local addresses that lanes come from, each with its own cable; none: the system chooses. */
  locals?: readonly string[];
  /** Number of lanes; 0 for a client that moves no records. */
  lanes?: number;
  /** The only rail to use, with one of the vault's addresses. */
  rail?: LaneRail;
  /** null: in the clear. */
  security?: ChannelSecurity | null;
  /** Returns the trust and credentials as they are now, after a failure for the vault's certificate; null: there are none. Must not throw. */
  renew?: () => ChannelSecurity | null;
  /** Error with which every call is rejected before a connection is made, where the vault must not be used. */
  refusal?: TierkvError;
  /** Called when records are wanted while the vault is down. */
  onWanted?: (() => void) | undefined;
}

/** Failures of the vault, not of the request. */
const COUNTS_AGAINST_VAULT: ReadonlySet<ErrorCode> = new Set<ErrorCode>([
  "VAULT_DOWN",
  "VAULT_DEADLINE",
  "VAULT_BROKEN",
  "VAULT_CLASS",
  "VAULT_CERTIFICATE",
  "VAULT_LOCKED",
  "VERSION_MISMATCH",
  "DEADLINE",
]);

/** Failures of a vault that answers, and is not to be used as it is set up: by its own verdict or by ours. */
const REFUSALS: ReadonlySet<ErrorCode> = new Set<ErrorCode>([
  "VAULT_CLASS",
  "VAULT_CERTIFICATE",
  "VAULT_LOCKED",
  "VERSION_MISMATCH",
]);

/** `vault`: reply to the hello on this connection; null: no hello yet. A closed connection only serves calls that end. */
type Connection = { readonly channel: VaultChannel; readonly at: LaneRail } & (
  | { readonly kind: "new" | "closed"; readonly vault: null }
  | { readonly kind: "ready"; readonly vault: HelloReply }
);

function speaksAgainstVault(error: TierkvError, attempt: Attempt): boolean {
  const isLate = error.grpcStatus === "DEADLINE_EXCEEDED";
  const isHurried = attempt.context.timeoutMs < BREAKER_LATE_MS;
  const isExcused = attempt.isGivenUp || (isLate && (attempt.hasProgress || isHurried));
  return COUNTS_AGAINST_VAULT.has(error.code) && !isExcused;
}

/** Name of the call that asks for records. */
const WANTED = "Lookup";

export class VaultConnection {
  readonly down: Goodput = new Goodput();
  readonly up: Goodput = new Goodput();
  readonly lanes: Lanes;
  /** The vault's flushes; the listener is called before any later answer. */
  readonly flushes: FlushFeed = new FlushFeed();
  readonly #options: VaultClientOptions;
  readonly #breaker: Breaker;
  readonly #calls = new Set<Attempt>();
  readonly #retries: Retries = new Retries();
  readonly #rails: Rails;
  #connection: Connection;
  #security: ChannelSecurity | null;
  /** Epoch in the last hello, on any connection. */
  #epoch: number | null = null;
  /** Capacity for its share of a pool, and whether it is being drained, as last reported. */
  capacityBytes: number | null = null;
  isDraining = false;
  /** Code of the last judged call that failed by a refusal; null: it did not. */
  #refusedBy: ErrorCode | null = null;

  constructor(options: VaultClientOptions) {
    this.#options = options;
    this.#security = options.security ?? null;
    const { address, rail, locals = [] } = options;
    this.#rails = new Rails({
      first: rail ?? { address },
      locals: rail === undefined ? locals : [],
      label: this.#label,
      logger: options.logger,
      answers: (tried) => {
        const asked = { ...options, security: this.#security };
        return isAt(tried, asked, this.flushes.number, this.#epoch);
      },
      onMore: () => void this.lanes.rejoin(),
    });
    this.#connection = this.#newTo(this.#rails.first);
    this.lanes = new Lanes({
      rails: () => this.#rails.open,
      onRailsFailed: (rails, reason) => {
        this.#rails.failed(rails, reason);
        if (rails.some((one) => isOver(this.#connection.at, one))) this.#callElsewhere();
      },
      count: options.lanes ?? LANES_DEFAULT,
      label: this.#label,
      logger: options.logger,
      down: this.down,
      up: this.up,
      tls: () => laneTls(this.#security),
      retries: this.#retries,
      renew: () => this.hello(HELLO_TIMEOUT_MS),
    });
    this.#breaker = new Breaker({
      probe: () => this.#probe(),
      onChange: (state, reason) => this.#logState(state, reason),
    });
  }

  /** Whether the last judged call failed by a refusal. */
  get isRefusing(): boolean {
    return this.#refusedBy !== null;
  }

  get state(): VaultState | "refused" {
    return this.#options.refusal === undefined ? this.#breaker.state : "refused";
  }

  /** Why the vault is not up; empty while it is. */
  get trouble(): string {
    return this.#options.refusal?.message ?? this.#breaker.reason;
  }

  /** True while the vault must not be asked: it does not answer, or no record gets through. */
  get isDown(): boolean {
    const isRefused = this.#options.refusal !== undefined;
    return this.#breaker.isOpen || isRefused || this.lanes.isUnreachable;
  }

  /** Paths to the vault that are out of use while another is used. */
  get cut(): string[] {
    return this.#rails.cut;
  }

  /** Returns all rails to the vault, once each was tried. */
  rails(): Promise<TriedRail[]> {
    return this.#rails.tried();
  }

  /** Counts of second tries. */
  get retries(): { taken: number; refused: number } {
    return this.#retries.counts;
  }

  /** True where the vault, in its last hello, accepts no records from this client. */
  get isReadOnly(): boolean {
    return this.#connection.vault?.readOnly ?? false;
  }

  get epoch(): number | null {
    return this.#epoch;
  }

  /** Says hello, even while the breaker is open. */
  async hello(timeoutMs: number): Promise<HelloReply> {
    return await this.direct("Hello", timeoutMs, (attempt) => this.#sayHello(attempt));
  }

  /**
   * Runs one call after a hello. Fails at once with VAULT_DOWN while the breaker is open, and with FETCH_STALLED if its request is not
   * under way after `stallMs`.
   */
  call<T>(
    call: string,
    timeoutMs: number,
    work: (attempt: Attempt, vault: HelloReply) => Promise<T>,
    parent?: CancelSignal,
    stallMs?: number,
  ): Promise<T> {
    if (this.#breaker.isOpen) {
      if (call === WANTED) this.#options.onWanted?.();
      const reason = `it is not used until it answers again; last failure: ${this.#breaker.reason}`;
      const context = this.#context(call, timeoutMs);
      return Promise.reject(new TierkvError("VAULT_DOWN", { ...context, reason }));
    }
    const greeted = (attempt: Attempt): Promise<T> => {
      if (stallMs !== undefined) attempt.mustBegin(stallMs);
      return this.#afterHello(attempt, work);
    };
    return this.direct(call, timeoutMs, greeted, parent);
  }

  /** Runs one call, after a hello, that does not judge the vault: only the hello counts for the breaker. Rejects like `call`. */
  listen<T>(
    call: string,
    timeoutMs: number,
    work: (attempt: Attempt) => Promise<T>,
    parent: CancelSignal,
  ): Promise<T> {
    return this.direct(
      call,
      timeoutMs,
      (attempt) => this.#afterHello(attempt, work),
      parent,
      false,
    );
  }

  /** Runs one call without a hello, even while the breaker is open. `isJudged`: the breaker counts the outcome. */
  async direct<T>(
    call: string,
    timeoutMs: number,
    work: (attempt: Attempt) => Promise<T>,
    parent?: CancelSignal,
    isJudged = true,
  ): Promise<T> {
    const context = this.#context(call, timeoutMs);
    const attempt = this.#admit(context);
    const onParent = (): void => attempt.giveUp(parent?.reason);
    if (parent?.aborted === true) onParent();
    parent?.addEventListener("abort", onParent, { once: true });
    try {
      const result = await work(attempt);
      if (isJudged) {
        this.#refusedBy = null;
        this.#breaker.succeeded();
      }
      return result;
    } catch (error) {
      const known = fromGrpcError(error, context);
      if (isJudged && speaksAgainstVault(known, attempt)) {
        this.#refusedBy = REFUSALS.has(known.code) ? known.code : null;
        this.#breaker.failed(known);
      }
      throw known;
    } finally {
      parent?.removeEventListener("abort", onParent);
      attempt.begun();
      this.#calls.delete(attempt);
    }
  }

  /** Cancels all calls under way. */
  close(): void {
    this.#breaker.close();
    this.#rails.close();
    this.lanes.close();
    const { at, channel } = this.#connection;
    this.#connection = { kind: "closed", at, channel, vault: null };
    for (const attempt of this.#calls) attempt.giveUp(this.#closedError());
    channel.close();
  }

  #newTo(at: LaneRail): Connection {
    const channel = new VaultChannel(at.address, this.#security, at.local);
    return { kind: "new", at, channel, vault: null };
  }

  /** Runs work after a hello, if there was none on the present connection. */
  #afterHello<T>(
    attempt: Attempt,
    work: (attempt: Attempt, vault: HelloReply) => Promise<T>,
  ): Promise<T> {
    const { vault } = this.#connection;
    if (vault !== null) return work(attempt, vault);
    return this.#sayHello(attempt).then((reply) => work(attempt, reply));
  }

  #admit(context: CallContext): Attempt {
    if (this.#options.refusal !== undefined) throw this.#options.refusal;
    if (this.#connection.kind === "closed") throw this.#closedError();
    if (this.#calls.size >= CLIENT_CALLS_MAX) {
      const reason = `${this.#calls.size} calls of this client are under way, the limit is ${CLIENT_CALLS_MAX}`;
      throw new TierkvError("VAULT_BUSY", { ...context, reason });
    }
    const attempt = new Attempt(() => this.#connection.channel, context);
    this.#calls.add(attempt);
    return attempt;
  }

  async #sayHello(attempt: Attempt): Promise<HelloReply> {
    const { channel, context } = attempt;
    const { name } = this.#options;
    const answer = await channel.unary(
      vaultService.Hello,
      helloRequest(name, this.flushes.number),
      attempt.options(),
    );
    const reply = checkHello(answer, name, context);
    this.#breaker.succeeded();
    if (reply.epoch !== this.#epoch && this.#epoch !== null) {
      void this.#logReturn(channel);
    }
    this.#epoch = reply.epoch;
    this.capacityBytes = reply.capacityBytes;
    this.isDraining = reply.draining;
    this.flushes.take(reply.flushes, reply.epoch);
    this.#becomeReady(channel, reply);
    // Clients without lanes need no further rails.
    const { lanes, rail } = this.#options;
    if (lanes !== 0 && rail === undefined) this.#rails.learn(reply.addresses, this.#connection.at);
    await this.lanes.offer(reply);
    return reply;
  }

  /** Keeps the reply while this connection is up and not replaced. */
  #becomeReady(channel: VaultChannel, vault: HelloReply): void {
    const { kind, at, channel: current } = this.#connection;
    if (channel !== current || kind === "closed") return;
    const ready: Connection = { kind: "ready", at, channel, vault };
    this.#connection = ready;
    channel.onceDisconnected(() => {
      if (this.#connection === ready) {
        this.#connection = { kind: "new", at, channel, vault: null };
      }
    });
  }

  /** Moves calls to another rail, where there is one; calls on the failed rail end now. */
  #callElsewhere(): void {
    const { kind, at, channel } = this.#connection;
    if (kind === "closed") return;
    const next = this.#rails.other(at);
    this.#connection = this.#newTo(next);
    if (next === at) channel.close();
    else channel.cut();
  }

  /** Logs a restart: the vault's memory is lost, its disk may not be. */
  async #logReturn(channel: VaultChannel): Promise<void> {
    const { logger } = this.#options;
    const vault = this.#label;
    try {
      const options = { timeoutMs: HELLO_TIMEOUT_MS, signal: new AbortController().signal };
      const { disk } = await channel.unary(vaultService.Stats, {}, options);
      if (disk === null || disk === undefined) {
        logger.warn({ vault }, "vault restarted and lost its memory");
      } else {
        const { records, recordBytes: bytes, recovering } = disk;
        const so = recovering
          ? `is recovering, ${records} records so far`
          : `recovered ${records} records`;
        logger.info({ vault, records, bytes, recovering }, `vault restarted and ${so}`);
      }
    } catch (error) {
      logger.warn({ vault, err: error }, "vault restarted, and its statistics failed");
    }
  }

  /** Probes on a new connection, because gRPC would wait for a half-open old one. */
  async #probe(): Promise<void> {
    // The vault was made anew, perhaps, and this machine has joined it again since.
    if (this.#refusedBy === "VAULT_CERTIFICATE") {
      this.#security = this.#options.renew?.() ?? this.#security;
    }
    this.#callElsewhere();
    await this.hello(HELLO_TIMEOUT_MS);
  }

  #logState(state: VaultState, reason: string): void {
    const { logger } = this.#options;
    if (this.#breaker.isOpen) logger.warn({ vault: this.#label, reason }, `vault is ${state}`);
    else logger.info({ vault: this.#label }, `vault is ${state}`);
  }

  #context(call: string, timeoutMs: number): CallContext {
    const { name, address } = this.#options;
    const open = address.startsWith("unix:") ? "socket" : "clear";
    return { name, address, call, timeoutMs, way: this.#security === null ? open : "tls" };
  }

  #closedError(): TierkvError {
    return new TierkvError("CLOSED", { what: `the client of the ${this.#label}` });
  }

  get #label(): string {
    return `${this.#options.name} vault at ${this.#options.address}`;
  }
}
