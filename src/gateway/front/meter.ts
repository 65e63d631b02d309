// Owns counting the tokens of an answer as it passes: what its engine tells of it, else its events; nothing is parsed.

const EVENT_END = Buffer.from("\n\n");
/** Inside a text the quote before the colon is escaped: this is the engine's own word. */
const TOTAL = Buffer.from('"total_tokens":');
/** Of a piece, kept until the next: the word and its number may be cut in two. */
const TAIL_BYTES = TOTAL.length + 24;

export class Meter {
  #tail: Buffer = Buffer.alloc(0);
  /** Prompt and answer together, as told last; null: the engine told nothing. */
  total: number | null = null;
  /** One for each token, where an engine streams. */
  events = 0;

  pass(chunk: Buffer): void {
    for (let at = chunk.indexOf(EVENT_END); at >= 0; at = chunk.indexOf(EVENT_END, at + 2)) {
      this.events += 1;
    }
    const text = Buffer.concat([this.#tail, chunk]);
    const at = text.lastIndexOf(TOTAL);
    const [digits] =
      at < 0 ? [] : (/^ *\d+/.exec(text.toString("latin1", at + TOTAL.length)) ?? []);
    if (digits !== undefined) this.total = Number(digits);
    this.#tail = Buffer.from(text.subarray(-TAIL_BYTES));
  }
}
