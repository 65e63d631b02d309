// Owns the progress of one request: its bytes as they add up, each reported once.
export class Progress {
  readonly #tell: (bytes: number) => void;
  #told = 0;

  constructor(tell: (bytes: number) => void) {
    this.#tell = tell;
  }

  upTo(bytes: number | null): void {
    const more = (bytes ?? 0) - this.#told;
    if (more <= 0) return;
    this.#told += more;
    this.#tell(more);
  }

  /** An answer is progress also when no byte came with it. */
  end(bytes: number): void {
    this.#tell(Math.max(0, bytes - this.#told));
  }
}
