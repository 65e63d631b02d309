// Owns how late a first token may come for whom while prompts wait: less late for what may be shed, and for who has more than an even share of what waits.
import {
  GATEWAY_FAIR_KEYS_MAX,
  GATEWAY_FAIR_MS,
  GATEWAY_SHED_SHARE,
} from "../../limits/gateway.ts";
import { nowMs } from "../../time.ts";
import type { Turn } from "../engines/queue.ts";

interface Account {
  /** Tokens that are computed for it now, or wait for it. */
  tokens: number;
  seenMs: number;
}

export class Throttle {
  /** By key, the one that was seen longest ago first. */
  readonly #accounts = new Map<string, Account>();
  #tokens = 0;

  /** The share of the time that a first token may take. */
  patience(turn: Turn): number {
    const { key, priority, tokens } = turn;
    const account = this.#seen(key);
    const evenly = (this.#tokens + tokens) / this.#accounts.size;
    const isOver = priority <= 0 && account.tokens + tokens > evenly;
    const isSheddable = priority < 0;
    return (isOver ? GATEWAY_SHED_SHARE : 1) * (isSheddable ? GATEWAY_SHED_SHARE : 1);
  }

  /** Call what is given once its first token came, or never will. */
  sent({ key, tokens }: Turn): () => void {
    const account = this.#seen(key);
    account.tokens += tokens;
    this.#tokens += tokens;
    let isOpen = true;
    return () => {
      if (!isOpen) return;
      isOpen = false;
      account.tokens -= tokens;
      this.#tokens -= tokens;
    };
  }

  /** Keys that have sent nothing for a while have no share; one with prompts under way is not forgotten. */
  #seen(key: string): Account {
    const account = this.#accounts.get(key) ?? { tokens: 0, seenMs: 0 };
    account.seenMs = nowMs();
    this.#accounts.delete(key);
    this.#accounts.set(key, account);
    for (const [other, { tokens, seenMs }] of this.#accounts) {
      const isRecent = account.seenMs - seenMs < GATEWAY_FAIR_MS;
      if (isRecent && this.#accounts.size <= GATEWAY_FAIR_KEYS_MAX) break;
      if (tokens === 0 && other !== key) this.#accounts.delete(other);
    }
    return account;
  }
}
