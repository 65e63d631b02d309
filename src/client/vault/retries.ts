// Owns a client's budget for second tries: a token bucket, so that retries do not add to a vault's trouble.
import {
  RETRY_TOKENS_MAX,
  RETRY_TOKENS_PER_ANSWER,
  RETRY_TOKENS_PER_S,
} from "../../base/limits/general.ts";
import { nowMs } from "../../base/time.ts";

/** The bucket is full at first. A second try takes a token; answers and time return them. */
export class Retries {
  #tokens: number = RETRY_TOKENS_MAX;
  #atMs: number = nowMs();
  #taken = 0;
  #refused = 0;

  /** Second tries made, and ones refused. */
  get counts(): { taken: number; refused: number } {
    return { taken: this.#taken, refused: this.#refused };
  }

  /** Returns tokens for an answer. */
  answered(): void {
    this.#add(RETRY_TOKENS_PER_ANSWER);
  }

  /** Takes a token for a second try; false when there is none. */
  take(): boolean {
    const now = nowMs();
    this.#add(((now - this.#atMs) / 1_000) * RETRY_TOKENS_PER_S);
    this.#atMs = now;
    if (this.#tokens < 1) {
      this.#refused += 1;
      return false;
    }
    this.#tokens -= 1;
    this.#taken += 1;
    return true;
  }

  #add(tokens: number): void {
    this.#tokens = Math.min(RETRY_TOKENS_MAX, this.#tokens + tokens);
  }
}
