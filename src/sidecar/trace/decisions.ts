// Owns the accounts of recent requests: what was looked up and found, what was decided and why, what was predicted and what it took.
import type { Tier } from "../../client/vault.ts";
import type { Choice, Decision } from "../../cost/engine-rates.ts";
import { DECISIONS_MAX } from "../../limits/general.ts";
import type { Logger } from "../../log.ts";
import type { SidecarCounters } from "../../metrics.ts";
import { nowMs, wallClockMs } from "../../time.ts";
import type { DoneReason, Prefetch, Unasked } from "../socket/messages.ts";
import { reasonOf } from "../socket/reasons.ts";
import type { Ledger } from "./ledger.ts";
import { traceOf } from "./request-trace.ts";
import type { RequestTrace } from "./request-trace.ts";

/** Milliseconds; null: not known, or did not happen. */
export interface Times {
  lookup: number | null;
  fetch: number | null;
  load: number | null;
  /** Computing what is not restored. */
  compute: number | null;
}

/** One prefetch of one request, or a request without, as `tierkv explain` shows it. Tokens count from the prompt's start. */
export interface Account {
  req: string;
  /** W3C context of its client; empty: none came. */
  traceparent: string;
  plan: number;
  /** Since 1970, ms. */
  at: number;
  engine: string;
  /** Hash of the last block that was looked up; empty: none was. */
  block: string;
  /** The engine held these itself. */
  startTokens: number;
  askedTokens: number;
  /** Behind those asked for: the prompt is longer than one look-up takes. */
  beyondTokens: number;
  /** A conversation's, or awaited: its engine saves it before prompts that come for the first time. */
  returns: boolean;
  /** Requests that came before it and that its engine had not begun. */
  ahead: number;
  /** Tokens of a block of the engine that handed it over, where those are longer; 0: they are not. */
  longerTokens: number;
  heldTokens: number | null;
  /** Where the room that shared memory has ends before that; null: it does not. */
  roomTokens: number | null;
  chosenTokens: number | null;
  placedTokens: number | null;
  /** Blocks that came from each tier, and not out of the arena. */
  fetched: Record<Tier, number>;
  /** Decoded, of all that was placed. */
  bytes: number;
  /** Where those blocks came from. */
  vaults: string[];
  loadedTokens: number | null;
  /** unasked: its engine did not ask for it. */
  choice: Choice | "undecided" | "unasked";
  why: string;
  end: DoneReason | null;
  /** Why the first block that is not held is missed. */
  miss: string | null;
  /** Whose that block is in a pool of vaults, and how many behind it are held; null: there is no pool, or none is missing. */
  gap: { vault: string; behind: number } | null;
  predicted: Times & { recompute: number | null };
  actual: Times;
  /** What the request waited less than by computing, ms, as the cost model estimates it; null: not known, or nothing was loaded. */
  saved: number | null;
  /** What its receipt is called; empty: it has none. */
  receipt: string;
}

/** An account that is complete; milliseconds count from the request's arrival. */
export interface Ended {
  account: Account;
  /** The one answer to why it got what it got. */
  reason: string;
  decidedMs: number;
  endedMs: number;
  /** null: its client wants no spans. */
  trace: RequestTrace | null;
}

type OnEnded = (ended: Ended) => void;

type Opened = Pick<
  Prefetch,
  "req" | "plan" | "traceparent" | "beyond" | "returns" | "ahead" | "longer"
> & {
  block: string;
};

const NO_TIMES: Times = { lookup: null, fetch: null, load: null, compute: null };

function blank(engine: string, req: string, traceparent: string): Account {
  return {
    req,
    traceparent,
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
    predicted: { ...NO_TIMES, recompute: null },
    actual: { ...NO_TIMES },
    saved: null,
    receipt: "",
  };
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

  /** `span`: the tokens that it asks for. */
  open(engine: string, asked: Opened, { start, end }: { start: number; end: number }): Case {
    const account = blank(engine, asked.req, asked.traceparent);
    account.plan = asked.plan;
    account.block = asked.block;
    account.startTokens = start;
    account.askedTokens = end;
    account.beyondTokens = asked.beyond;
    account.returns = asked.returns;
    account.ahead = asked.ahead;
    account.longerTokens = asked.longer?.tokens ?? 0;
    this.#keep(account);
    return new Case(account, this.#counters, this.#logger, this.#ledger, this.#onEnded);
  }

  /** A request for which its engine did not ask, and why. */
  unasked(engine: string, { req, why, tokens, ownTokens, traceparent }: Unasked): void {
    this.#keepEnded({
      ...blank(engine, req, traceparent),
      startTokens: ownTokens,
      askedTokens: tokens,
      choice: "unasked",
      why,
    });
  }

  /** A request that was turned away. */
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

  /** Accounts whose request is `req` or starts with it, the latest last; with an empty text all. */
  find(req: string, most: number): Account[] {
    return this.#recent.filter((account) => account.req.startsWith(req)).slice(-most);
  }

  /** The latest `most` accounts of which an engine loaded something, the latest last. */
  restores(most: number): Account[] {
    return this.#recent.filter(({ loadedTokens }) => (loadedTokens ?? 0) > 0).slice(-most);
  }
}

/** The open account of one plan. */
export class Case {
  readonly account: Account;
  /** null: nobody wants its spans. */
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

  /** Why nothing is restored: what became of the first block, or what was decided; nothing where the plan's end says it. */
  get whyNot(): { why?: string } {
    const { choice, why, miss } = this.account;
    if (why === "nothing_held") return miss === null ? {} : { why: miss };
    return choice === "recomputed" ? { why } : {};
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

  /** It held less than was known of it. */
  missed(heldTokens: number, miss: string): void {
    const { account } = this;
    account.heldTokens = heldTokens;
    account.miss = miss;
    this.#counters.add(`miss_${miss}`);
    if (heldTokens > account.startTokens) return;
    account.choice = "recomputed";
    account.why = "nothing_held";
  }

  /** The arena, empty, could not hold more. */
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

  /** So many blocks came from these vaults of a tier. */
  fetched(tier: Tier, count: number, vaults: Iterable<string>): void {
    const { account } = this;
    account.fetched[tier] += count;
    account.vaults = [...new Set([...account.vaults, ...vaults])];
  }

  /** Blocks of `bytes` in all lie in the arena now. */
  placed(bytes: number): void {
    this.account.bytes += bytes;
  }

  /** Nothing more will be placed. */
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
   * The engine has let go of it; `loadedTokens` of them were used, `loadMs` after they were placed. Computing them would have taken
   * `prefillS`; null: not known.
   */
  released(loadedTokens: number, loadMs: number | null, prefillS: number | null = null): void {
    const { actual } = this.account;
    this.account.loadedTokens = loadedTokens;
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
    if (this.#logger.isLevelEnabled("debug")) this.#logger.debug({ ...this.account }, "request");
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
