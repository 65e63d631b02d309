// Owns the progress of one request: its bytes as they add up, each reported once.
export class Progress {
  readonly #report: (bytes: number) => void;
  #reported = 0;

  constructor(report: (bytes: number) => void) {
    this.#report = report;
  }

  upTo(bytes: number | null): void {
    const more = (bytes ?? 0) - this.#reported;
    if (more <= 0) return;
    this.#reported += more;
    this.#report(more);
  }

  /** An answer is progress also when no byte came with it. */
  end(bytes: number): void {
    this.#report(Math.max(0, bytes - this.#reported));
  }
}
