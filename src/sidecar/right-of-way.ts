// Owns the right of way on the links: restores go first, saves wait for them, but never for long.

export class RightOfWay {
  #restores = 0;
  #waiting: (() => void)[] = [];

  /** A fetch begins; `end` must follow. */
  begin(): void {
    this.#restores += 1;
  }

  end(): void {
    this.#restores -= 1;
    if (this.#restores > 0) return;
    for (const go of this.#waiting.splice(0)) go();
  }

  get isFree(): boolean {
    return this.#restores === 0;
  }

  /** Resolves when no fetch is under way, or after `mostMs`. */
  whenFree(mostMs: number): Promise<void> {
    if (this.isFree) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, mostMs);
      this.#waiting.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }
}
