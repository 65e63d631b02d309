// Owns how late a first token may come while prompts wait: less late for sheddable requests and for keys above an even share.
import {
  GATEWAY_FAIR_KEYS_MAX,
  GATEWAY_FAIR_MS,
  GATEWAY_SHED_SHARE,
} from "../../base/limits/gateway.ts";
import { nowMs } from "../../base/time.ts";
import type { Turn } from "../engines/queue.ts";

interface Account {
  /** Tokens computed or queued for the key now. */
  tokens: number;
  seenMs: number;
}

export class Throttle {
  /** Accounts by key, least recently seen first. */
  readonly #accounts = new Map<string, Account>();
  #tokens = 0;

  /** Fraction of the allowed time that this request's first token may take. */
  patience(turn: Turn): number {
    const { key, priority, tokens } = turn;
    const account = this.#seen(key);
    const evenly = (this.#tokens + tokens) / this.#accounts.size;
    const isOver = priority <= 0 && account.tokens + tokens > evenly;
    const isSheddable = priority < 0;
    return (isOver ? GATEWAY_SHED_SHARE : 1) * (isSheddable ? GATEWAY_SHED_SHARE : 1);
  }

  /** Counts a request's tokens until the returned function is called: at its first token, or when none will come. */
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

  /** Forgets keys that sent nothing for a while; a key with prompts under way stays. */
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
