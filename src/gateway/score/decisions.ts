// Owns the record of the latest decisions: the request, each engine's predicted cost, and the outcome.
import {
  GATEWAY_DECISIONS_KEPT_MAX,
  GATEWAY_REQUEST_ID_CHARS_MAX,
} from "../../base/limits/gateway.ts";

/**
 * held, vault, computed: source of the tokens before the first. load: the prompt or what the engine holds is not known, or the
 * preset weighs only load. session: owner on the ring. turn: round robin.
 */
export type Reason = "held" | "vault" | "computed" | "load" | "session" | "turn";

/** Prediction for one engine, in tokens and milliseconds. */
export interface Candidate {
  engine: string;
  /** null: not known, because the engine publishes no events to the gateway. */
  held: number | null;
  pulled: number;
  waitMs: number;
  computeMs: number;
}

/** Computing of the prompt at an engine of `[gateway] prefill`, before the answering engine got the request. */
export interface Prefilled {
  engine: string;
  /** Tokens that it handed over; 0: it failed, and the answering engine computed the prompt. */
  tokens: number;
  predictedMs: number;
  measuredMs: number;
}

export interface Decision {
  /** `x-request-id` of the request, or of its answer where the client sent none; empty: none, as behind some proxies. */
  id: string;
  /** Milliseconds since 1970. */
  at: number;
  model: string | null;
  /** Tokens of the prompt; 0: not known. */
  tokens: number;
  engine: string;
  reason: Reason;
  /** The chosen engine comes first; empty where the prompt is not known. */
  candidates: Candidate[];
  /** null: no other engine computed it first. */
  prefilled: Prefilled | null;
  /** Time to the first token, with that of `prefilled`; null: the prompt is not known. */
  predictedMs: number | null;
  /** The same as measured; for a whole answer, its time less the usual decoding of the rest. null: not come, or not known. */
  measuredMs: number | null;
}

/** Totals of one engine's recorded requests with a known prompt, of which is known what the engine held: tokens summed, milliseconds at the median. */
export interface Recent {
  /** Number of requests. */
  requests: number;
  /** Tokens of their prompts. */
  tokens: number;
  /** Tokens of these that the engine held. */
  held: number;
  /** Tokens of these that it pulled from vaults. */
  pulled: number;
  /** Median of the predicted times to the first token, of requests whose first token was measured; null: none was. */
  predictedMs: number | null;
  /** Median of the measured times. */
  measuredMs: number | null;
}

/** Keeps the last GATEWAY_DECISIONS_KEPT_MAX decisions. */
export class Decisions {
  readonly #kept: Decision[] = [];

  add(decision: Decision): Decision {
    this.rename(decision, decision.id);
    this.#kept.push(decision);
    if (this.#kept.length > GATEWAY_DECISIONS_KEPT_MAX) this.#kept.shift();
    return decision;
  }

  rename(decision: Decision, id: string): void {
    decision.id = id.slice(0, GATEWAY_REQUEST_ID_CHARS_MAX);
  }

  recent(engine: string): Recent {
    const isKnown = ({ candidates: [chosen] }: Decision): boolean =>
      (chosen?.held ?? null) !== null;
    const all = this.#kept.filter((one) => one.engine === engine && isKnown(one));
    const chosen = all.flatMap(({ candidates }) => candidates.slice(0, 1));
    const measured = all.filter(({ measuredMs }) => measuredMs !== null);
    return {
      requests: all.length,
      tokens: all.reduce((sum, { tokens }) => sum + tokens, 0),
      held: chosen.reduce((sum, { held }) => sum + (held ?? 0), 0),
      pulled: chosen.reduce((sum, { pulled }) => sum + pulled, 0),
      predictedMs: middle(measured.map(({ predictedMs }) => predictedMs ?? 0)),
      measuredMs: middle(measured.map(({ measuredMs }) => measuredMs ?? 0)),
    };
  }

  /** Returns the decisions whose id begins so, latest first. */
  latest(beginning: string, most: number): Decision[] {
    const found = this.#kept.filter(({ id }) => id.startsWith(beginning));
    return found.reverse().slice(0, most);
  }
}

function middle(values: readonly number[]): number | null {
  return values.toSorted((a, b) => a - b)[values.length >> 1] ?? null;
}
