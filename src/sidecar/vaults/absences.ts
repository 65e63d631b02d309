// Owns which vaults of a class were away together, because other vaults stored blocks in their place at that time.
import { ABSENCES_KEPT_MAX, VIEW_KEPT_MS } from "../../base/limits/pool.ts";
import { nowMs } from "../../base/time.ts";

type Vaults = ReadonlySet<string>;

export class Absences {
  #away: Vaults = new Set();
  /** Newest first. */
  #past: { away: Vaults; untilMs: number }[] = [];

  /** Takes the addresses of the vaults that are away now. */
  look(addresses: readonly string[]): void {
    const now = new Set(addresses);
    const ended = this.#away;
    if (isSame(now, ended)) return;
    this.#away = now;
    if (ended.size === 0) return;
    const others = this.#past.filter(({ away }) => !isSame(away, ended));
    const absence = { away: ended, untilMs: nowMs() + VIEW_KEPT_MS };
    this.#past = [absence, ...others].slice(0, ABSENCES_KEPT_MAX);
  }

  /** Returns the vaults of each absence that ended within VIEW_KEPT_MS, newest first. */
  recent(): Vaults[] {
    const now = nowMs();
    this.#past = this.#past.filter(({ untilMs }) => now <= untilMs);
    return this.#past.map(({ away }) => away);
  }
}

const isSame = (one: Vaults, other: Vaults): boolean =>
  one.size === other.size && [...one].every((address) => other.has(address));
