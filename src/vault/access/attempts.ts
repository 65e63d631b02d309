// Owns the limit on failed logins per address: a burst, then one per AUTH_REFILL_MS.
import { AUTH_FAILURES_MAX, AUTH_PEERS_MAX, AUTH_REFILL_MS } from "../../base/limits/access.ts";
import { nowMs } from "../../base/time.ts";

interface Account {
  failures: number;
  atMs: number;
}

export class Attempts {
  readonly #accounts = new Map<string, Account>();

  /** Whether this address has no attempt left for now. */
  isSpent(address: string): boolean {
    const account = this.#accounts.get(address);
    return account !== undefined && settle(account) >= AUTH_FAILURES_MAX;
  }

  /** Counts a failure. */
  failed(address: string): void {
    const account = this.#accounts.get(address) ?? { failures: 0, atMs: nowMs() };
    settle(account);
    account.failures = Math.min(account.failures + 1, AUTH_FAILURES_MAX);
    // Moved to the end, so that the address whose last failure is oldest is forgotten first.
    this.#accounts.delete(address);
    this.#accounts.set(address, account);
    if (this.#accounts.size > AUTH_PEERS_MAX) {
      const [oldest = ""] = this.#accounts.keys();
      this.#accounts.delete(oldest);
    }
  }
}

/** Forgives one failure per AUTH_REFILL_MS and returns those left. */
function settle(account: Account): number {
  const forgiven = Math.floor((nowMs() - account.atMs) / AUTH_REFILL_MS);
  account.failures = Math.max(0, account.failures - forgiven);
  account.atMs += forgiven * AUTH_REFILL_MS;
  return account.failures;
}
