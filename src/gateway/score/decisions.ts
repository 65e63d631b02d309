// Owns the memory of what was decided: the latest requests, what each engine would have taken, and how it came out.
import { GATEWAY_DECISIONS_KEPT_MAX, GATEWAY_REQUEST_ID_CHARS_MAX } from "../../limits-gateway.ts";

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
  /** Until the first byte of its answer; null: it has not come, or tells nothing of the first token. */
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

  /** The latest first: those whose id begins so. */
  latest(beginning: string, most: number): Decision[] {
    const found = this.#kept.filter(({ id }) => id.startsWith(beginning));
    return found.reverse().slice(0, most);
  }
}
