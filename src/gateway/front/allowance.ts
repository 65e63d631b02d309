// Owns what one key may take: requests and tokens a minute, requests at once; and what is left of that.
import { GATEWAY_ANSWER_TOKENS_MAX, GATEWAY_RETRY_AFTER_S } from "../../limits/gateway.ts";
import { nowMs } from "../../time.ts";
import { fieldsOf } from "./body.ts";
import { Meter } from "./meter.ts";

const MINUTE_MS = 60_000;
/** Of a body whose prompt is a text: until the engine tells. */
const BYTES_PER_TOKEN = 4;

/** Requests and tokens are those of a minute; null: as many as there are. */
export interface KeyLimits {
  readonly requests: number | null;
  readonly tokens: number | null;
  readonly concurrent: number | null;
}

/** Which of them is used up. */
export type Spent = "key_requests" | "key_tokens" | "key_concurrent";

/** For `tierkv gateway status`; what is left may be below 0. */
export interface ShownAllowance {
  limits: KeyLimits;
  requestsLeft: number | null;
  tokensLeft: number | null;
  atOnce: number;
  refused: number;
}

/** A refusal, and when the same request would be taken. */
export interface Refusal {
  spent: Spent;
  retryAfterS: number;
  headers: Readonly<Record<string, string>>;
}

/** Fills evenly over a minute. Whoever finds something in it may take more than that, and waits longer afterwards. */
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

  /** Until it holds so many. */
  msUntil(level: number): number {
    return (Math.max(0, level - this.left) / this.perMinute) * MINUTE_MS;
  }
}

/** What one key's requests share, whichever gateway door they come by. */
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

  /** One request more, before its body is read. */
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

  /** Its tokens are not there: others may have taken them while its body came. */
  spend(tokens: number): Refusal | null {
    const late = this.#lacking("key_tokens");
    if (late === null) this.#tokens?.take(tokens);
    return late;
  }

  /** What it took beside what was spent before; less than nothing is given back. */
  settle(tokens: number): void {
    this.#tokens?.take(tokens);
  }

  leave(): void {
    this.#atOnce -= 1;
  }

  /** As clients of the OpenAI API read them. */
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

/** One request of a key, from its head until its answer has ended. */
export class Visit {
  readonly #of: Allowance;
  readonly #meter = new Meter();
  #spent = 0;
  #prompt = 0;
  #isOver = false;

  constructor(of: Allowance) {
    this.#of = of;
  }

  /** The prompt, and what the answer may have at most, which is settled when it has ended. */
  spend(body: unknown, bytes: number): Refusal | null {
    const prompt = promptTokens(body, bytes);
    const spent = prompt + answerTokensMax(body);
    const refusal = this.#of.spend(spent);
    if (refusal === null) [this.#prompt, this.#spent] = [prompt, spent];
    return refusal;
  }

  /** A piece of the answer passes. */
  pass(chunk: Buffer): void {
    this.#meter.pass(chunk);
  }

  /** Events of an answer that is read here. */
  count(events: number): void {
    this.#meter.events += events;
  }

  headers(): Record<string, string> {
    return this.#of.headers();
  }

  /** Any number of times. */
  leave(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const { total, events } = this.#meter;
    if (this.#spent > 0) this.#of.settle((total ?? this.#prompt + events) - this.#spent);
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

/** Engines take numbers as text, too; an object has words of its own for how it becomes a number. */
const countOf = (value: unknown): number =>
  typeof value === "number" || typeof value === "string" ? Number(value) : 0;
