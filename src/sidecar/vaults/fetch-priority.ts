// Owns the priority of fetches on the links: saves wait while restores fetch, but never for long.

export class FetchPriority {
  #restores = 0;
  readonly #waiting = new Set<() => void>();

  /** A fetch begins; `end` must follow. */
  begin(): void {
    this.#restores += 1;
  }

  end(): void {
    this.#restores -= 1;
    if (this.#restores > 0) return;
    for (const go of this.#waiting) go();
  }

  get isFree(): boolean {
    return this.#restores === 0;
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /** Resolves when no fetch is under way, or after `mostMs`. */
  whenFree(mostMs: number): Promise<void> {
    if (this.isFree) return Promise.resolve();
    return new Promise((resolve) => {
      const go = (): void => {
        clearTimeout(timer);
        // Removed on time-out as well, because overlapping restores would otherwise leave one entry per save for hours.
        this.#waiting.delete(go);
        resolve();
      };
      const timer = setTimeout(go, mostMs);
      this.#waiting.add(go);
    });
  }
}
