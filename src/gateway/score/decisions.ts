// Owns the memory of what was decided: the latest requests, what each engine would have taken, and how it came out.
import { GATEWAY_DECISIONS_KEPT_MAX, GATEWAY_REQUEST_ID_CHARS_MAX } from "../../limits/gateway.ts";

/**
 * held, vault, computed: where the tokens before the first come from · load: its prompt is not known, or the preset asks for
 * nothing else · session: its owner on the ring · turn: its turn.
 */
export type Reason = "held" | "vault" | "computed" | "load" | "session" | "turn";

/** What was believed of one engine; tokens and milliseconds. */
export interface Candidate {
  engine: string;
  held: number;
  pulled: number;
  waitMs: number;
  computeMs: number;
}

export interface Decision {
  /** `x-request-id` of the request; empty: it had none. */
  id: string;
  /** Milliseconds since 1970. */
  at: number;
  model: string | null;
  /** Of the prompt; 0: not known. */
  tokens: number;
  engine: string;
  reason: Reason;
  /** The engine that was chosen first; empty where the prompt is not known. */
  candidates: Candidate[];
  predictedMs: number | null;
  /** Until its first token: of a whole answer, less what decoding the rest usually takes. null: not come, or not known. */
  measuredMs: number | null;
}

/** Of one engine's remembered requests whose prompt is known: tokens together, milliseconds at the median. */
export interface Recent {
  requests: number;
  tokens: number;
  held: number;
  pulled: number;
  /** Of those whose first token was measured; null: none was. */
  predictedMs: number | null;
  measuredMs: number | null;
}

/** GATEWAY_DECISIONS_KEPT_MAX of them, the oldest forgotten. */
export class Decisions {
  readonly #kept: Decision[] = [];

  add(decision: Decision): Decision {
    decision.id = decision.id.slice(0, GATEWAY_REQUEST_ID_CHARS_MAX);
    this.#kept.push(decision);
    if (this.#kept.length > GATEWAY_DECISIONS_KEPT_MAX) this.#kept.shift();
    return decision;
  }

  recent(engine: string): Recent {
    const all = this.#kept.filter((one) => one.engine === engine && one.candidates.length > 0);
    const chosen = all.flatMap(({ candidates }) => candidates.slice(0, 1));
    const measured = all.filter(({ measuredMs }) => measuredMs !== null);
    return {
      requests: all.length,
      tokens: all.reduce((sum, { tokens }) => sum + tokens, 0),
      held: chosen.reduce((sum, { held }) => sum + held, 0),
      pulled: chosen.reduce((sum, { pulled }) => sum + pulled, 0),
      predictedMs: middle(measured.map(({ predictedMs }) => predictedMs ?? 0)),
      measuredMs: middle(measured.map(({ measuredMs }) => measuredMs ?? 0)),
    };
  }

  /** The latest first: those whose id begins so. */
  latest(beginning: string, most: number): Decision[] {
    const found = this.#kept.filter(({ id }) => id.startsWith(beginning));
    return found.reverse().slice(0, most);
  }
}

function middle(values: readonly number[]): number | null {
  return values.toSorted((a, b) => a - b)[values.length >> 1] ?? null;
}
