// Owns the accounts of recent requests: what was found, decided, predicted and measured, and why.
import { DECISIONS_MAX, NAME_BYTES_MAX } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import { nowMs, wallClockMs } from "../../base/time.ts";
import type { Tier } from "../../client/source.ts";
import type { Choice, Decision } from "../../cost/engine-rates.ts";
import type { Diverged, Divergence } from "../socket/divergence.ts";
import type { DoneReason, Prefetch, Unasked } from "../socket/messages.ts";
import { reasonOf } from "../socket/reasons.ts";
import type { Ledger } from "./ledger.ts";
import { traceOf } from "./request-trace.ts";
import type { RequestTrace } from "./request-trace.ts";

/** Milliseconds; null: not known, or it did not happen. */
export interface Times {
  /** Milliseconds from the request's arrival to the vaults' answer. */
  lookup: number | null;
  /** Milliseconds from the decision until the last block lay in shared memory. */
  fetch: number | null;
  /** Milliseconds from then until the engine had copied all blocks. */
  load: number | null;
  /** Milliseconds of computing the tokens that are not restored. */
  compute: number | null;
}

/** One prefetch of a request, or a request without one, as `tierkv explain` shows it. Tokens count from the prompt's start. */
export interface Account {
  /** Id of the request. */
  req: string;
  /** The client's W3C trace context; empty: none came. */
  traceparent: string;
  /** The engine's number for this look-up. */
  plan: number;
  /** Milliseconds since 1970. */
  at: number;
  /** Id of the engine. */
  engine: string;
  /** Hash of the last block looked up; empty: none was. */
  block: string;
  /** Tokens in the engine's own cache. */
  startTokens: number;
  /** Tokens from the prompt's start to the last block that was looked up. */
  askedTokens: number;
  /** Further tokens of a prompt that is longer than one look-up takes. */
  beyondTokens: number;
  /** True for conversations and awaited prompts, which the engine saves before prompts that come for the first time. */
  returns: boolean;
  /** Requests that came earlier and that the engine had not begun. */
  ahead: number;
  /** Tokens per block of the engine that handed it over, where its blocks are longer; otherwise 0. */
  longerTokens: number;
  /** Tokens from the prompt's start that are held and can be used. */
  heldTokens: number | null;
  /** Tokens that fit into shared memory, where that is less than held; null: all fit. */
  roomTokens: number | null;
  /** Parts in which a prompt larger than shared memory passes through it; otherwise 1. */
  windows: number;
  /** Tokens up to which the sidecar decided to restore; null: no decision yet. */
  chosenTokens: number | null;
  /** Tokens up to which blocks came into shared memory. */
  placedTokens: number | null;
  /** Blocks fetched from each tier; blocks already in the arena do not count. */
  fetched: Record<Tier, number>;
  /** Decoded bytes of all placed blocks. */
  bytes: number;
  /** Vaults that the fetched blocks came from. */
  vaults: string[];
  /** Tokens that the engine loaded. */
  loadedTokens: number | null;
  /** unasked: the engine did not ask for it. */
  choice: Choice | "undecided" | "unasked";
  /** Reason for the choice. */
  why: string;
  /** Why no more blocks were fetched; null: the fetch has not ended. */
  end: DoneReason | null;
  /** Why the first missing block is missing. */
  miss: string | null;
  /** In a pool of vaults: the owner of that block, and how many blocks behind it are held. null: no pool, or no block is missing. */
  gap: { vault: string; behind: number } | null;
  /** Where the prompt stops matching an earlier one; null: nowhere, or not known. */
  divergence: Divergence | null;
  /** Times as predicted at the decision; `recompute`: of computing all tokens. */
  predicted: Times & { recompute: number | null };
  /** Times as measured. */
  actual: Times;
  /** Milliseconds saved against computing, as the cost model estimates; null: not known, or nothing was loaded. */
  saved: number | null;
  /** Name of its receipt; empty: it has none. */
  receipt: string;
}

/** A complete account; milliseconds count from the request's arrival. */
export interface Ended {
  account: Account;
  /** The one reason for the request's result. */
  reason: string;
  decidedMs: number;
  endedMs: number;
  /** null: the client wants no spans. */
  trace: RequestTrace | null;
}

type OnEnded = (ended: Ended) => void;

type Opened = Pick<
  Prefetch,
  "req" | "plan" | "traceparent" | "beyond" | "returns" | "ahead" | "longer"
>;

function blank(engine: string, req: string, traceparent: string): Account {
  return {
    req: beginning(req),
    traceparent: beginning(traceparent),
    plan: 0,
    at: Math.round(wallClockMs()),
    engine,
    block: "",
    startTokens: 0,
    askedTokens: 0,
    beyondTokens: 0,
    returns: false,
    ahead: 0,
    longerTokens: 0,
    heldTokens: null,
    roomTokens: null,
    windows: 1,
    chosenTokens: null,
    placedTokens: null,
    fetched: { vault: 0, shared: 0 },
    bytes: 0,
    vaults: [],
    loadedTokens: null,
    choice: "undecided",
    why: "",
    end: null,
    miss: null,
    gap: null,
    divergence: null,
    predicted: { lookup: null, fetch: null, load: null, compute: null, recompute: null },
    actual: { lookup: null, fetch: null, load: null, compute: null },
    saved: null,
    receipt: "",
  };
}

/** Cuts what a client named, because frames with many accounts are shorter than so many long names. */
function beginning(text: string): string {
  return text.slice(0, NAME_BYTES_MAX);
}

export class Decisions {
  readonly #counters: SidecarCounters;
  readonly #logger: Logger;
  readonly #ledger: Ledger;
  readonly #recent: Account[] = [];
  readonly #onEnded: OnEnded | null;

  constructor(
    counters: SidecarCounters,
    logger: Logger,
    ledger: Ledger,
    onEnded: OnEnded | null = null,
  ) {
    this.#counters = counters;
    this.#logger = logger;
    this.#ledger = ledger;
    this.#onEnded = onEnded;
  }

  /** Opens the account of a prefetch whose last block has the hash `block`; `start` and `end` are the tokens it asks for. */
  open(
    engine: string,
    asked: Opened,
    block: string,
    { start, end }: { start: number; end: number },
  ): Case {
    const account = blank(engine, asked.req, asked.traceparent);
    account.plan = asked.plan;
    account.block = block;
    account.startTokens = start;
    account.askedTokens = end;
    account.beyondTokens = asked.beyond;
    account.returns = asked.returns;
    account.ahead = asked.ahead;
    account.longerTokens = asked.longer?.tokens ?? 0;
    this.#keep(account);
    return new Case(account, this.#counters, this.#logger, this.#ledger, this.#onEnded);
  }

  /** Keeps a request for which the engine did not ask, and why. */
  unasked(engine: string, { req, why, tokens, ownTokens, traceparent }: Unasked): void {
    this.#keepEnded({
      ...blank(engine, req, traceparent),
      startTokens: ownTokens,
      askedTokens: tokens,
      choice: "unasked",
      why,
    });
  }

  /** Adds to a request's latest account where its prompt stops matching an earlier one. */
  diverged(engine: string, { req, divergence }: Diverged): void {
    const name = beginning(req);
    const account = this.#recent.findLast((one) => one.req === name && one.engine === engine);
    if (account !== undefined) account.divergence = divergence;
  }

  /** Keeps a request that was turned away. */
  refused(engine: string, { req, plan, traceparent }: Prefetch, reason: DoneReason): void {
    this.#keepEnded({ ...blank(engine, req, traceparent), plan, end: reason });
  }

  #keepEnded(account: Account): void {
    this.#keep(account);
    if (this.#onEnded === null) return;
    const trace = traceOf(account.traceparent);
    this.#onEnded({ account, reason: reasonOf(account), decidedMs: 0, endedMs: 0, trace });
  }

  #keep(account: Account): void {
    this.#recent.push(account);
    if (this.#recent.length > DECISIONS_MAX) this.#recent.shift();
  }

  /** Returns the latest accounts whose request begins with `req`, the newest last; an empty text matches all. */
  find(req: string, most: number): Account[] {
    const begins = beginning(req);
    return this.#recent.filter((account) => account.req.startsWith(begins)).slice(-most);
  }

  /** Returns the latest `most` accounts with loaded tokens, the newest last. */
  restores(most: number): Account[] {
    return this.#recent.filter(({ loadedTokens }) => (loadedTokens ?? 0) > 0).slice(-most);
  }
}

/** The open account of one plan. */
export class Case {
  readonly account: Account;
  /** null: no spans are wanted. */
  readonly trace: RequestTrace | null;
  readonly #counters: SidecarCounters;
  readonly #logger: Logger;
  readonly #ledger: Ledger;
  readonly #onEnded: OnEnded | null;
  readonly openedMs: number = nowMs();
  #decidedMs = nowMs();
  #isLogged = false;

  constructor(
    account: Account,
    counters: SidecarCounters,
    logger: Logger,
    ledger: Ledger,
    onEnded: OnEnded | null,
  ) {
    this.account = account;
    this.trace = onEnded === null ? null : traceOf(account.traceparent);
    this.#counters = counters;
    this.#logger = logger;
    this.#ledger = ledger;
    this.#onEnded = onEnded;
  }

  /** Why nothing is restored: the first block's miss or the decision; null where the plan's end says it. */
  get whyNot(): string | null {
    const { choice, why, miss } = this.account;
    if (why === "nothing_held") return miss;
    return choice === "recomputed" ? why : null;
  }

  lookedUp(heldTokens: number, miss: string | null, gap: Account["gap"]): void {
    this.account.gap = gap;
    this.account.heldTokens = heldTokens;
    const lookupMs = nowMs() - this.openedMs;
    this.account.actual.lookup = round(lookupMs);
    this.#counters.took("lookup", lookupMs);
    this.account.miss = miss;
    if (miss !== null) this.#counters.add(`miss_${miss}`);
  }

  /** Corrects an account: the vault held less than expected. */
  missed(heldTokens: number, miss: string): void {
    const { account } = this;
    account.heldTokens = heldTokens;
    account.miss = miss;
    this.#counters.add(`miss_${miss}`);
    if (heldTokens > account.startTokens) return;
    account.choice = "recomputed";
    account.why = "nothing_held";
  }

  /** Notes that the blocks pass through the arena in so many windows. */
  passes(windows: number): void {
    this.account.windows = windows;
  }

  /** Notes that even an empty arena holds no more than `tokens`. */
  roomEnds(tokens: number): void {
    this.account.roomTokens = tokens;
  }

  decided({ tokens, choice, why, cost, recomputeS }: Decision): void {
    const { account } = this;
    this.#decidedMs = nowMs();
    account.chosenTokens = tokens;
    account.choice = choice;
    account.why = why;
    account.predicted.fetch = ms(cost?.fetchS);
    account.predicted.load = ms(cost?.loadS);
    account.predicted.compute = ms(cost?.computeS);
    account.predicted.recompute = ms(recomputeS);
    this.#counters.add(`decided_${choice}_${why}`);
  }

  /** Adds `count` blocks fetched from a vault of a tier. */
  fetched(tier: Tier, count: number, vault: string): void {
    const { fetched, vaults } = this.account;
    fetched[tier] += count;
    if (!vaults.includes(vault)) vaults.push(vault);
  }

  /** Adds `bytes` of blocks placed in the arena. */
  placed(bytes: number): void {
    this.account.bytes += bytes;
  }

  /** Notes that no more blocks will be placed. */
  ended(reason: DoneReason, placedTokens: number): void {
    const { account } = this;
    account.end = reason;
    account.placedTokens = placedTokens;
    if (account.chosenTokens !== null) {
      const fetchMs = nowMs() - this.#decidedMs;
      account.actual.fetch = round(fetchMs);
      if (account.chosenTokens > account.startTokens) this.#counters.took("fetch", fetchMs);
    }
    if (placedTokens <= account.startTokens) this.#log();
  }

  /**
   * Notes the engine's release: `loadedTokens` were used, `loadMs` after they were placed. Computing them would have taken
   * `prefillS`; null: not known. `why`: why the engine went on without what had come; empty: it did not.
   */
  released(
    loadedTokens: number,
    loadMs: number | null,
    prefillS: number | null = null,
    why = "",
  ): void {
    const { actual } = this.account;
    this.account.loadedTokens = loadedTokens;
    if (why !== "") {
      this.account.choice = "recomputed";
      this.account.why = why;
    }
    if (loadMs !== null) {
      actual.load = round(loadMs);
      this.#counters.took("load", loadMs);
      const restoreMs = (actual.lookup ?? 0) + (actual.fetch ?? 0) + loadMs;
      this.account.saved = ms(this.#ledger.restored(loadedTokens, restoreMs / 1000, prefillS));
    }
    this.#log();
  }

  #log(): void {
    if (this.#isLogged) return;
    this.#isLogged = true;
    if (this.#logger.isLevelEnabled("debug"))
      this.#logger.debug({ ...this.account, divergence: undefined }, "request");
    this.#onEnded?.({
      account: this.account,
      reason: reasonOf(this.account),
      decidedMs: this.#decidedMs - this.openedMs,
      endedMs: nowMs() - this.openedMs,
      trace: this.trace,
    });
  }
}

const round = (value: number): number => Math.round(value * 100) / 100;

function ms(seconds: number | null | undefined): number | null {
  return seconds === null || seconds === undefined ? null : round(seconds * 1000);
}
