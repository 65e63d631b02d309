// Owns the relation to one vault: channel, hello after each connect, breaker, and the frame around every call.
import type { RecordClass } from "../block.ts";
import type { ErrorCode } from "../errors.ts";
import { TierkvError } from "../errors.ts";
import { CLIENT_CALLS_MAX, HELLO_TIMEOUT_MS, LANES_DEFAULT } from "../limits/general.ts";
import type { Logger } from "../log.ts";
import { Goodput } from "../native.ts";
import type { LaneRail } from "../native.ts";
import type { HelloReply } from "../wire/messages.ts";
import type { ChannelSecurity } from "../wire/security.ts";
import { vaultService } from "../wire/service.ts";
import { fromGrpcError } from "../wire/status.ts";
import type { CallContext } from "../wire/status.ts";
import { Attempt } from "./attempt.ts";
import { Breaker } from "./breaker.ts";
import type { VaultState } from "./breaker.ts";
import { VaultChannel } from "./channel.ts";
import { FlushFeed } from "./flush-feed.ts";
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
  /** Addresses of this machine that lanes come from, each with a cable of its own; none: the system chooses. */
  locals?: readonly string[];
  /** Connections on which records travel; 0: none, for who moves no records. */
  lanes?: number;
  /** This way to it alone, which its own address is one of. */
  rail?: LaneRail;
  /** null: in the clear. */
  security?: ChannelSecurity | null;
  /** Why nothing may be sent to this vault; every call is rejected with it before a connection is made. */
  refusal?: TierkvError;
  /** Its records are wanted, and it is down. */
  onWanted?: (() => void) | undefined;
}

/** Failures that speak against the vault, not against the request. */
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

/** `vault`: what it answered on the connection that is up; null: no hello yet. A closed one is only there for calls that end. */
type Connection = { readonly channel: VaultChannel; readonly at: LaneRail } & (
  | { readonly kind: "new" | "closed"; readonly vault: null }
  | { readonly kind: "ready"; readonly vault: HelloReply }
);

function speaksAgainstVault(error: TierkvError, attempt: Attempt): boolean {
  const isLate = error.grpcStatus === "DEADLINE_EXCEEDED";
  const isExcused = attempt.isGivenUp || (isLate && attempt.hasProgress);
  return COUNTS_AGAINST_VAULT.has(error.code) && !isExcused;
}

/** The call by which records are wanted. */
const WANTED = "Lookup";

export class VaultSession {
  readonly down: Goodput = new Goodput();
  readonly up: Goodput = new Goodput();
  /** What records travel on. */
  readonly lanes: Lanes;
  /** What the vault dropped for good; its listener hears of it before any answer that comes after. */
  readonly flushes: FlushFeed = new FlushFeed();
  readonly #options: VaultClientOptions;
  readonly #breaker: Breaker;
  readonly #calls = new Set<Attempt>();
  readonly #retries: Retries = new Retries();
  readonly #rails: Rails;
  #connection: Connection;
  /** Of the last hello, on whatever connection. */
  #epoch: number | null = null;
  /** What the vault said last: its share of a pool, and that it takes no new records. */
  capacityBytes: number | null = null;
  isDraining = false;

  constructor(options: VaultClientOptions) {
    this.#options = options;
    const { address, rail, locals = [] } = options;
    this.#rails = new Rails({
      first: rail ?? { address },
      locals: rail === undefined ? locals : [],
      label: this.#label,
      logger: options.logger,
      answers: (way) => isAt(way, options, this.flushes.number, this.#epoch),
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
      tls: laneTls(options.security ?? null),
      retries: this.#retries,
      renew: () => this.hello(HELLO_TIMEOUT_MS),
    });
    this.#breaker = new Breaker({
      probe: () => this.#probe(),
      onChange: (state, reason) => this.#logState(state, reason),
    });
  }

  get state(): VaultState | "refused" {
    return this.#options.refusal === undefined ? this.#breaker.state : "refused";
  }

  /** Why it is not up; empty where it is. */
  get trouble(): string {
    return this.#options.refusal?.message ?? this.#breaker.reason;
  }

  /** Nobody is to ask the vault: it does not answer, or no record gets to it. */
  get isOpen(): boolean {
    const isRefused = this.#options.refusal !== undefined;
    return this.#breaker.isOpen || isRefused || this.lanes.isUnreachable;
  }

  /** All ways to the vault, once each was tried. */
  rails(): Promise<TriedRail[]> {
    return this.#rails.tried();
  }

  /** What was tried a second time. */
  get retries(): { taken: number; refused: number } {
    return this.#retries.counts;
  }

  /** What the last hello said: the vault takes nothing from this client. */
  get isReadOnly(): boolean {
    return this.#connection.vault?.readOnly ?? false;
  }

  get epoch(): number | null {
    return this.#epoch;
  }

  /** Says hello, whatever the breaker says. */
  async hello(timeoutMs: number): Promise<HelloReply> {
    return await this.direct("Hello", timeoutMs, (attempt) => this.#sayHello(attempt));
  }

  /** Runs one call after a hello. Fails at once with VAULT_DOWN while the breaker is open. */
  call<T>(
    call: string,
    timeoutMs: number,
    work: (attempt: Attempt, vault: HelloReply) => Promise<T>,
    parent?: AbortSignal,
  ): Promise<T> {
    if (this.#breaker.isOpen) {
      if (call === WANTED) this.#options.onWanted?.();
      const reason = `calls fail at once until a probe succeeds; last failure: ${this.#breaker.reason}`;
      const context = this.#context(call, timeoutMs);
      return Promise.reject(new TierkvError("VAULT_DOWN", { ...context, reason }));
    }
    return this.direct(call, timeoutMs, (attempt) => this.#afterHello(attempt, work), parent);
  }

  /**
   * Runs one call, after a hello, whose outcome says nothing of how the vault is: the breaker hears of it only when the
   * vault answers a hello. Rejects like `call`.
   */
  listen<T>(
    call: string,
    timeoutMs: number,
    work: (attempt: Attempt) => Promise<T>,
    parent: AbortSignal,
  ): Promise<T> {
    return this.direct(
      call,
      timeoutMs,
      (attempt) => this.#afterHello(attempt, work),
      parent,
      false,
    );
  }

  /** Runs one call without a hello, whatever the breaker says; the breaker hears how it went, unless it says nothing of the vault. */
  async direct<T>(
    call: string,
    timeoutMs: number,
    work: (attempt: Attempt) => Promise<T>,
    parent?: AbortSignal,
    isJudged = true,
  ): Promise<T> {
    const context = this.#context(call, timeoutMs);
    const attempt = this.#admit(context);
    const onParent = (): void => attempt.giveUp(parent?.reason);
    if (parent?.aborted === true) onParent();
    parent?.addEventListener("abort", onParent, { once: true });
    try {
      const result = await work(attempt);
      if (isJudged) this.#breaker.succeeded();
      return result;
    } catch (error) {
      const known = fromGrpcError(error, context);
      if (isJudged && speaksAgainstVault(known, attempt)) this.#breaker.failed(known);
      throw known;
    } finally {
      parent?.removeEventListener("abort", onParent);
      this.#calls.delete(attempt);
    }
  }

  /** Cancels what is under way. */
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
    const channel = new VaultChannel(at.address, this.#options.security, at.local);
    return { kind: "new", at, channel, vault: null };
  }

  /** Says hello first where that was not done on the connection that is up. */
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
    // What moves no records has no use for further ways.
    const { lanes, rail } = this.#options;
    if (lanes !== 0 && rail === undefined) this.#rails.learn(reply.addresses, this.#connection.at);
    await this.lanes.offer(reply);
    return reply;
  }

  /** As long as the connection is up, and nothing else stands in its place. */
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

  /** Over another way, where there is one; calls on one that is cut end now. */
  #callElsewhere(): void {
    const { kind, at, channel } = this.#connection;
    if (kind === "closed") return;
    const next = this.#rails.other(at);
    this.#connection = this.#newTo(next);
    if (next === at) channel.close();
    else channel.cut();
  }

  /** Another epoch: what was in its memory is gone, what was on its disk may not be. */
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
      logger.warn({ vault, err: error }, "vault restarted, and does not say with what");
    }
  }

  /** On a new connection: an old one may hang half-open, and gRPC would wait for it. */
  async #probe(): Promise<void> {
    this.#callElsewhere();
    await this.hello(HELLO_TIMEOUT_MS);
  }

  #logState(state: VaultState, reason: string): void {
    const { logger } = this.#options;
    if (this.#breaker.isOpen) logger.warn({ vault: this.#label, reason }, `vault is ${state}`);
    else logger.info({ vault: this.#label }, `vault is ${state}`);
  }

  #context(call: string, timeoutMs: number): CallContext {
    const { name, address, security = null } = this.#options;
    const open = address.startsWith("unix:") ? "socket" : "clear";
    return { name, address, call, timeoutMs, way: security === null ? open : "tls" };
  }

  #closedError(): TierkvError {
    return new TierkvError("CLOSED", { what: `the client of the ${this.#label}` });
  }

  get #label(): string {
    return `${this.#options.name} vault at ${this.#options.address}`;
  }
}
