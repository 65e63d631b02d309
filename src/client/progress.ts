// Owns the progress of one request: bytes as they add up, each reported once.
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

  /** Reports the rest; an answer is progress even without bytes. */
  end(bytes: number): void {
    this.#report(Math.max(0, bytes - this.#reported));
  }
}
