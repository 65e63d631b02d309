// Owns how often a client tries again what a vault failed at: a bucket of tokens, so that trying again never adds to the trouble.
import {
  RETRY_TOKENS_MAX,
  RETRY_TOKENS_PER_ANSWER,
  RETRY_TOKENS_PER_S,
} from "../limits/general.ts";
import { nowMs } from "../time.ts";

/** Full at first. Every second try takes a token; answers and time bring them back. */
export class Retries {
  #tokens: number = RETRY_TOKENS_MAX;
  #atMs: number = nowMs();
  #taken = 0;
  #refused = 0;

  /** Second tries that were made, and those that were not. */
  get counts(): { taken: number; refused: number } {
    return { taken: this.#taken, refused: this.#refused };
  }

  /** A first try was answered. */
  answered(): void {
    this.#add(RETRY_TOKENS_PER_ANSWER);
  }

  /** Whether a request may be tried a second time. */
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
