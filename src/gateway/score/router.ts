// Owns the decision for one request: its tokens, which engines hold them, and the resulting order of engines.
import { nowMs, wallClockMs } from "../../base/time.ts";
import type { Preset } from "../../config/config.ts";
import { Prefill } from "../../cost/prefill.ts";
import type { Engine } from "../engines/engine.ts";
import type { Order } from "../engines/fleet.ts";
import type { Turn } from "../engines/queue.ts";
import { Decisions } from "./decisions.ts";
import type { Candidate, Decision, Prefilled, Reason } from "./decisions.ts";
import { Knowing, memberFor, reaching, spanAt, unknown, wholeBlocks } from "./known.ts";
import type { Known, KnowingOptions, Part } from "./known.ts";
import { leastLoad, prefixWeighted, roundRobin, soonest } from "./presets.ts";
import { SessionRing } from "./ring.ts";
import { Throttle } from "./throttle.ts";
import { costOf, TtftModel } from "./ttft-model.ts";
import type { Computing, Span, TtftParts } from "./ttft-model.ts";

/** Properties of a request that the decision uses. */
export interface Asked {
  /** `x-request-id`, or the gateway's own id where the client sent none; empty: none. */
  id: string;
  path: string;
  /** The parsed body; null: it is not JSON. */
  body: unknown;
  model: string | null;
  /** Bytes of the body without pictures and sounds. */
  bytes: number;
  /** Session of the request; null: none. */
  session: string | null;
  /** Requests with one name share; empty: none given. */
  fairness: string;
  /** Name of an objective, which has a priority; empty: none. */
  objective: string;
}

/** Properties that are needed until the answer ends; the body is not one of them, because it may be long. */
interface About extends Pick<Asked, "id" | "model" | "session"> {
  /** Whether one choice alone was asked for. */
  isSingle: boolean;
  /** The part of the prompt that another engine has computed before. */
  prefilled: Prefilled | null;
}

const aboutOf = ({ id, model, session, body }: Asked, prefilled: Prefilled | null): About => ({
  id,
  model,
  session,
  prefilled,
  isSingle: isSingle(body),
});

/** A request at one engine. */
export interface Sent {
  /** Called at the first byte of the answer. */
  begun(isStream: boolean): void;
  /** Called when an answer that does not stream has arrived whole, with its count of tokens. */
  answered(tokens: number): void;
  ended(): void;
  /** Called with the `x-request-id` of the answer where the client sent none. */
  named(id: string): void;
  /** Predicted milliseconds until the first token. */
  predictedMs: number;
  /** Headers to add to the request. */
  headers: Readonly<Record<string, string>>;
  /** Headers to add to the answer. */
  receipt: Readonly<Record<string, string>>;
}

/** A prompt that one engine computes and another one answers. */
export interface Ahead {
  engine: Engine;
  /** Milliseconds until it has computed the prompt, as predicted. */
  predictedMs: number;
  /** Counts the prompt as being computed there. */
  send(): Computing;
  /** Ends that count: the prompt was handed over, or never will be. */
  done(computing: Computing, isHandedOver: boolean): void;
}

/** How one request chooses its engine, and what follows its choice. */
export interface Choice {
  /** Even the earliest first token is predicted later than allowed. */
  isLate: boolean;
  /** Engine that computes the prompt first, because the answer comes earlier so; null: the answering engine does. */
  ahead: Ahead | null;
  order: Order;
  /** Place in the queue where no engine has room. */
  turn: Turn;
  send(engine: Engine): Sent;
  /** Lets go of what is known of the prompt, such as its hashes, because an answer may take an hour; nothing is asked after it. */
  release(): void;
}

export interface RouterOptions extends KnowingOptions {
  preset: Preset;
  /** Latest time of a first token, ms; null: no limit. */
  ttftMs: number | null;
  /** Fewest tokens that one engine computes for another. */
  prefillTokens: number;
  /** Priorities by objective. */
  objectives: ReadonlyMap<string, number>;
}

const NOT_PREFILLED = { predictedMs: 0, measuredMs: 0 };

/** Knowledge of a prompt whose answer has begun. */
const NOTHING: Known = unknown(0);

export class Router {
  readonly #options: RouterOptions;
  readonly #turns = roundRobin();
  readonly #models = new WeakMap<Engine, TtftModel>();
  readonly #usual = new Prefill();
  readonly #throttle = new Throttle();
  readonly #knowing: Knowing;
  readonly decisions: Decisions = new Decisions();
  #ring = new SessionRing([]);
  /** Generation of the fleet when the ring was made. */
  #ringOf = 0;

  constructor(options: RouterOptions) {
    this.#options = options;
    this.#knowing = new Knowing(options);
  }

  /** `prefilled`: what another engine has computed for the one that answers. */
  async choose(asked: Asked, prefilled: Prefilled | null = null): Promise<Choice> {
    const { preset } = this.#options;
    const looks = preset === "earliest-token" || preset === "prefix-weighted";
    const found = looks ? await this.#knowing.know(asked) : unknown(asked.bytes);
    const known = reaching(found, prefilled?.tokens ?? 0, this.#options.fleet.engines);
    const turn = this.#turnOf(known, asked);
    const about = aboutOf(asked, prefilled);
    const isLate = this.#isLate(known, asked.model, turn);
    return {
      isLate,
      turn,
      ahead: this.#aheadOf(known, asked.model),
      ...this.#held(known, about, turn),
    };
  }

  /** Nothing but these functions holds what is known of the prompt. */
  #held(known: Known, about: About, turn: Turn): Pick<Choice, "order" | "send" | "release"> {
    let held = known;
    return {
      order: (engines) => this.#orderOf(held, about.session)(engines),
      send: (engine) => this.#send(engine, held, about, turn),
      release: () => void (held = NOTHING),
    };
  }

  #turnOf({ tokens, estimate }: Known, { fairness: key, objective }: Asked): Turn {
    const priority = this.#options.objectives.get(objective) ?? 0;
    return { key, priority, tokens: tokens || estimate || 1 };
  }

  #isLate(known: Known, model: string | null, turn: Turn): boolean {
    const { fleet } = this.#options;
    const able = fleet.able(model);
    if (this.#options.ttftMs === null || able.length === 0) return false;
    const ttftMs = this.#options.ttftMs * this.#throttle.patience(turn);
    return able.every((engine) => {
      const parts = this.#ttftOf(engine).partsOf(spanAt(known, engine));
      return costOf(parts) > ttftMs;
    });
  }

  /**
   * Computing elsewhere overlaps the queue of the answering engine, so it wins where that queue is long or the other engine
   * is faster.
   */
  #aheadOf(known: Known, model: string | null): Ahead | null {
    const { fleet, index, prefillTokens, roster } = this.#options;
    if (model === null || known.isComputed || known.tokens < prefillTokens) return null;
    const behind = this.#behind();
    const sooner = soonest(
      (engine) => this.#costMs(engine, known, behind),
      () => 0,
    );
    const [first] = sooner(fleet.able(model));
    const [helper] = sooner(fleet.engines.filter((engine) => engine.prefills(model)));
    if (first === undefined || helper === undefined) return null;
    const span = spanAt(known, first);
    if (known.tokens - span.reach < prefillTokens) return null;
    const ttft = this.#ttftOf(first);
    const [member] = roster.membersOf(first);
    const size = member === undefined ? null : index.blockSize(member.holder);
    const whole = wholeBlocks(known.tokens, size ?? 1);
    const thereMs = costOf(this.#ttftOf(helper).partsOf(spanAt(known, helper)));
    const readyMs = thereMs + ttft.pullMs(span.held, whole);
    const splitMs = Math.max(readyMs, ttft.queueMs()) + ttft.computeMs(whole, known.tokens);
    return splitMs < costOf(ttft.partsOf(span)) ? this.#ahead(helper, known, thereMs) : null;
  }

  #ahead(engine: Engine, known: Known, predictedMs: number): Ahead {
    const ttft = this.#ttftOf(engine);
    const span = spanAt(known, engine);
    return {
      engine,
      predictedMs,
      send: () => ttft.sent(span),
      done(computing, isHandedOver) {
        if (isHandedOver) ttft.begun(computing, true);
        else ttft.left(computing);
      },
    };
  }

  /** Orders the engines of a session, its owner on the ring first. */
  orderOf(session: string): Order {
    const { fleet } = this.#options;
    if (this.#ringOf !== fleet.generation) this.#ring = new SessionRing(fleet.engines);
    this.#ringOf = fleet.generation;
    return this.#ring.orderOf(session);
  }

  /** Prompts computed or queued there, and milliseconds until one more could begin. */
  queueOf(engine: Engine): { prompts: number; queueMs: number } {
    const ttft = this.#ttftOf(engine);
    return { prompts: ttft.prompts, queueMs: ttft.queueMs() };
  }

  #ttftOf(engine: Engine): TtftModel {
    const known = this.#models.get(engine);
    if (known !== undefined) return known;
    const ttft = new TtftModel(this.#usual);
    this.#models.set(engine, ttft);
    return ttft;
  }

  #orderOf(known: Known, session: string | null): Order {
    const { preset } = this.#options;
    switch (preset) {
      case "round-robin":
        return this.#turns;
      case "least-load":
        return leastLoad;
      case "ring":
        return session === null ? leastLoad : this.orderOf(session);
      case "prefix-weighted":
        return known.tokens === 0
          ? leastLoad
          : prefixWeighted((engine) => spanAt(known, engine).held / known.tokens);
      case "earliest-token": {
        const behind = this.#behind();
        return soonest(
          (engine) => this.#costMs(engine, known, behind),
          (engine) => spanAt(known, engine).held,
        );
      }
      default:
        return preset satisfies never;
    }
  }

  /** Prompts that wait now at an engine, on average. */
  #behind(): number {
    const { engines } = this.#options.fleet;
    let prompts = 0;
    for (const each of engines) prompts += this.#ttftOf(each).prompts;
    return prompts / Math.max(1, engines.length);
  }

  /**
   * Cost of sending the prompt there: its own time to the first token plus the delay of prompts behind it, as many as wait
   * now on average. A busy fleet so saves work, where each request alone would flee to the shortest queue.
   */
  #costMs(engine: Engine, known: Known, behind: number): number {
    const ttft = this.#ttftOf(engine);
    const span = spanAt(known, engine);
    return costOf(ttft.partsOf(span, behind), behind) + this.#copyMs(engine, known);
  }

  /** Cost of a second copy: a full engine evicts blocks for it that will be computed again. */
  #copyMs(engine: Engine, { spans }: Known): number {
    let most = 0;
    for (const { held } of spans.values()) most = Math.max(most, held);
    const { held = 0 } = spans.get(engine) ?? {};
    if (held >= most) return 0;
    const { index, roster } = this.#options;
    const all = roster.membersOf(engine).map(({ holder }) => index.pressure(holder));
    const pressure = Math.max(0, ...all);
    return pressure > 0 ? pressure * this.#ttftOf(engine).computeMs(held, most) : 0;
  }

  #send(engine: Engine, known: Known, about: About, turn: Turn): Sent {
    const { preset } = this.#options;
    const part = memberFor(known, engine);
    const span = part === null || part.member.rank === null ? spanAt(known, engine) : part.span;
    const ttft = this.#ttftOf(engine);
    const parts = ttft.partsOf(span);
    const { measuredMs: goneMs } = about.prefilled ?? NOT_PREFILLED;
    const sentMs = nowMs();
    const decision = this.decisions.add(this.#decisionOf(engine, known, about, parts));
    const left = part === null ? null : this.#enterMember(part, span);
    const isKnown = known.tokens > 0;
    const held = this.#heldAt(engine, known);
    // A prompt of estimated length counts for those behind it; nothing is learnt from it.
    const computing: Computing | null = span.tokens === 0 ? null : ttft.sent(span);
    const paid = this.#throttle.sent(turn);
    let wholeMs = 0;
    const told = {
      ...(held === null ? {} : { "x-tierkv-hit-tokens": `${held}/${known.tokens}` }),
      "x-tierkv-vault-tokens": String(parts.pulled),
      "x-tierkv-predicted-ttft-ms": (decision.predictedMs ?? 0).toFixed(1),
    };
    return {
      begun(isStream) {
        paid();
        left?.();
        if (isStream) decision.measuredMs = goneMs + nowMs() - sentMs;
        if (computing !== null) ttft.begun(computing, isStream && isKnown);
        wholeMs = nowMs() - sentMs;
      },
      answered(tokens) {
        if (computing === null || !isKnown || !about.isSingle) return;
        const firstMs = ttft.answered(computing, wholeMs, Math.max(0, tokens - 1));
        decision.measuredMs = firstMs === null ? null : goneMs + firstMs;
      },
      ended() {
        paid();
        left?.();
        if (computing !== null) ttft.left(computing);
      },
      named: (id) => this.decisions.rename(decision, id),
      predictedMs: costOf(parts),
      headers: rankOf(part),
      receipt: {
        "x-tierkv-preset": preset,
        "x-tierkv-reason": decision.reason,
        ...(isKnown ? told : {}),
      },
    };
  }

  /** Counts a prompt at a member until it is computed; returns an idempotent function that ends it. */
  #enterMember({ member, view }: Part, { tokens, held }: Span): () => void {
    this.#options.index.guess(member.holder, view);
    let waiting = tokens - held;
    member.waiting += waiting;
    return () => {
      member.waiting -= waiting;
      waiting = 0;
    };
  }

  #decisionOf(
    engine: Engine,
    known: Known,
    { id, model, session, prefilled }: About,
    parts: TtftParts,
  ): Decision {
    const { preset, fleet } = this.#options;
    const { tokens } = known;
    const able = fleet.able(model).filter((other) => other !== engine);
    const candidates = tokens === 0 ? [] : [engine, ...able];
    return {
      id,
      at: wallClockMs(),
      model,
      tokens,
      engine: engine.name,
      reason: reasonOf(preset, known, this.#heldAt(engine, known), parts, session),
      candidates: candidates.map((one) => this.#candidate(one, known)),
      prefilled,
      predictedMs: tokens === 0 ? null : (prefilled ?? NOT_PREFILLED).predictedMs + costOf(parts),
      measuredMs: null,
    };
  }

  #candidate(engine: Engine, known: Known): Candidate {
    const { pulled, waitMs, computeMs } = this.#ttftOf(engine).partsOf(spanAt(known, engine));
    return { engine: engine.name, held: this.#heldAt(engine, known), pulled, waitMs, computeMs };
  }

  /** Tokens of the prompt that an engine holds; null: it publishes no events to the gateway, so nobody knows. */
  #heldAt(engine: Engine, known: Known): number | null {
    const { roster } = this.#options;
    const isFollowed = roster.membersOf(engine).some((member) => member.isFollowed);
    return isFollowed || known.isComputed ? spanAt(known, engine).held : null;
  }
}

function reasonOf(
  preset: Preset,
  { tokens }: Known,
  held: number | null,
  { pulled }: TtftParts,
  session: string | null,
): Reason {
  if (preset === "round-robin") return "turn";
  if (preset === "ring" && session !== null) return "session";
  if (tokens === 0) return "load";
  if (pulled > 0) return "vault";
  if (held === null) return "load";
  return held > 0 ? "held" : "computed";
}

/** vLLM's header that names the data-parallel rank; without ranks there is none. */
function rankOf(part: Part | null): Record<string, string> {
  const rank = part?.member.rank ?? null;
  return rank === null ? {} : { "x-data-parallel-rank": String(rank) };
}

/** The token count of several choices at once says nothing about time. */
function isSingle(body: unknown): boolean {
  const { n } = (typeof body === "object" && body !== null ? body : {}) as { n?: unknown };
  return n === undefined || n === null || n === 1;
}

/** Returns the preset that holds where none is named. */
export function presetOf(preset: Preset | null, hasEvents: boolean): Preset {
  return preset ?? (hasEvents ? "earliest-token" : "least-load");
}
