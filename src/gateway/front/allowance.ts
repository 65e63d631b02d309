// Owns the limits of one key and what remains: requests and tokens a minute, and requests at once.
import { GATEWAY_ANSWER_TOKENS_MAX, GATEWAY_RETRY_AFTER_S } from "../../base/limits/gateway.ts";
import { AnswerMeter } from "../../base/native.ts";
import { nowMs } from "../../base/time.ts";
import { fieldsOf } from "./body.ts";

const MINUTE_MS = 60_000;
/** Estimate for a body whose prompt is text, until the engine reports its tokens. */
const BYTES_PER_TOKEN = 4;

/** Requests and tokens are per minute; null: no limit. */
export interface KeyLimits {
  readonly requests: number | null;
  readonly tokens: number | null;
  readonly concurrent: number | null;
}

/** Which limit is used up. */
export type Spent = "key_requests" | "key_tokens" | "key_concurrent";

/** For `tierkv gateway status`; what remains may be below 0. */
export interface ShownAllowance {
  limits: KeyLimits;
  requestsLeft: number | null;
  tokensLeft: number | null;
  atOnce: number;
  refused: number;
}

/** A refusal, and when the same request would be accepted. */
export interface Refusal {
  spent: Spent;
  retryAfterS: number;
  headers: Readonly<Record<string, string>>;
}

/** Refills evenly over a minute. A request that finds one unit may overdraw it, and later ones wait longer. */
class Bucket {
  readonly perMinute: number;
  #level: number;
  #atMs: number = nowMs();

  constructor(perMinute: number) {
    this.perMinute = perMinute;
    this.#level = perMinute;
  }

  get left(): number {
    const now = nowMs();
    const come = ((now - this.#atMs) / MINUTE_MS) * this.perMinute;
    this.#level = Math.min(this.perMinute, this.#level + come);
    this.#atMs = now;
    return this.#level;
  }

  take(count: number): void {
    this.#level = this.left - count;
  }

  /** Milliseconds until the bucket holds `level`. */
  msUntil(level: number): number {
    return (Math.max(0, level - this.left) / this.perMinute) * MINUTE_MS;
  }
}

/** Limits shared by all requests of one name, at whichever address they arrive. */
export class Allowance {
  readonly limits: KeyLimits;
  readonly #requests: Bucket | null;
  readonly #tokens: Bucket | null;
  #atOnce = 0;
  #refused = 0;

  constructor(limits: KeyLimits) {
    this.limits = limits;
    this.#requests = limits.requests === null ? null : new Bucket(limits.requests);
    this.#tokens = limits.tokens === null ? null : new Bucket(limits.tokens);
  }

  /** Admits one request before its body is read. */
  enter(): Visit | Refusal {
    const { concurrent } = this.limits;
    if (concurrent !== null && this.#atOnce >= concurrent) {
      return this.#refuse("key_concurrent", GATEWAY_RETRY_AFTER_S * 1000);
    }
    const late = this.#lacking();
    if (late !== null) return late;
    this.#requests?.take(1);
    this.#atOnce += 1;
    return new Visit(this);
  }

  /** Spends a request's tokens, or refuses: others may have spent them while its body arrived. */
  spend(tokens: number): Refusal | null {
    const late = this.#lacking("key_tokens");
    if (late === null) this.#tokens?.take(tokens);
    return late;
  }

  /** Spends tokens beyond the estimate; a negative count gives them back. */
  settle(tokens: number): void {
    this.#tokens?.take(tokens);
  }

  leave(): void {
    this.#atOnce -= 1;
  }

  /** Returns rate-limit headers as clients of the OpenAI API read them. */
  headers(): Record<string, string> {
    return { ...headersOf("requests", this.#requests), ...headersOf("tokens", this.#tokens) };
  }

  status(): ShownAllowance {
    const left = (bucket: Bucket | null): number | null => bucket && Math.floor(bucket.left);
    return {
      limits: this.limits,
      requestsLeft: left(this.#requests),
      tokensLeft: left(this.#tokens),
      atOnce: this.#atOnce,
      refused: this.#refused,
    };
  }

  #lacking(only?: Spent): Refusal | null {
    const buckets = [
      ["key_requests", this.#requests],
      ["key_tokens", this.#tokens],
    ] as const;
    for (const [spent, bucket] of buckets) {
      const waitMs = only === undefined || only === spent ? (bucket?.msUntil(1) ?? 0) : 0;
      if (waitMs > 0) return this.#refuse(spent, waitMs);
    }
    return null;
  }

  #refuse(spent: Spent, waitMs: number): Refusal {
    this.#refused += 1;
    return {
      spent,
      retryAfterS: Math.max(GATEWAY_RETRY_AFTER_S, Math.ceil(waitMs / 1000)),
      headers: this.headers(),
    };
  }
}

/** One request of a key, from its headers to the end of its answer. */
export class Visit {
  readonly #of: Allowance;
  /** Counts the answer as it passes. */
  readonly meter: AnswerMeter = new AnswerMeter();
  /** Events of an answer that the gateway itself read. */
  #events = 0;
  #spent = 0;
  #prompt = 0;
  #isOver = false;

  constructor(of: Allowance) {
    this.#of = of;
  }

  /** Spends the prompt and the longest answer allowed; `leave` settles the difference. */
  spend(body: unknown, bytes: number): Refusal | null {
    const prompt = promptTokens(body, bytes);
    const spent = prompt + answerTokensMax(body);
    const refusal = this.#of.spend(spent);
    if (refusal === null) [this.#prompt, this.#spent] = [prompt, spent];
    return refusal;
  }

  /** Counts events of an answer that the gateway itself reads. */
  count(events: number): void {
    this.#events += events;
  }

  headers(): Record<string, string> {
    return this.#of.headers();
  }

  /** Settles the tokens and leaves; idempotent. `status`: that of the answer; null: none came, though one may be computed. */
  leave(status: number | null): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const { total, events } = this.meter;
    // An error comes before any computing.
    const unreported = status !== null && status >= 400 ? 0 : this.#prompt + events + this.#events;
    if (this.#spent > 0) this.#of.settle((total ?? unreported) - this.#spent);
    this.#of.leave();
  }
}

function headersOf(what: string, bucket: Bucket | null): Record<string, string> {
  if (bucket === null) return {};
  return {
    [`x-ratelimit-limit-${what}`]: String(bucket.perMinute),
    [`x-ratelimit-remaining-${what}`]: String(Math.max(0, Math.floor(bucket.left))),
    [`x-ratelimit-reset-${what}`]: `${Math.ceil(bucket.msUntil(bucket.perMinute)) / 1000}s`,
  };
}

function promptTokens(body: unknown, bytes: number): number {
  const { prompt } = fieldsOf(body);
  const isTokens = Array.isArray(prompt) && typeof prompt[0] === "number";
  return isTokens ? prompt.length : Math.ceil(bytes / BYTES_PER_TOKEN);
}

function answerTokensMax(body: unknown): number {
  const { max_completion_tokens, max_tokens, n } = fieldsOf(body);
  const most = countOf(max_completion_tokens ?? max_tokens ?? 0) * countOf(n ?? 1);
  return most > 0 ? Math.min(most, GATEWAY_ANSWER_TOKENS_MAX) : 0;
}

/** Engines take numbers as text, too; objects count as 0, because a client's own `valueOf` could make the conversion throw. */
const countOf = (value: unknown): number =>
  typeof value === "number" || typeof value === "string" ? Number(value) : 0;
