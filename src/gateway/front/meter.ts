// Owns counting an answer's tokens as it passes: the engine's own count, else its events; nothing is parsed.

/** Begins the data of an event; a comment has none. */
const DATA = Buffer.from("\ndata:");
/** Inside a JSON string the quote would be escaped, so this is the engine's own field. */
const TOTAL = Buffer.from('"total_tokens":');
const ANSWER = Buffer.from('"completion_tokens":');
/** Anthropic's API reports no total, but the parts of the prompt and the answer. */
const PARTS = ["input", "cache_read_input", "cache_creation_input"].map((name) =>
  Buffer.from(`"${name}_tokens":`),
);
const OUTPUT = Buffer.from('"output_tokens":');
const DIGITS_MAX = 24;
/** Bytes kept of each chunk, because a name and its number may be cut in two. */
const TAIL_BYTES = Math.max(ANSWER.length, ...PARTS.map(({ length }) => length)) + DIGITS_MAX;

export class Meter {
  #tail: Buffer = Buffer.from("\n");
  #total: number | null = null;
  readonly #parts = PARTS.map(() => 0);
  #output: number | null = null;
  /** Tokens of the answer, as last reported; null: not reported. */
  answer: number | null = null;
  /** Events so far: one for each token, where an engine streams. */
  events = 0;

  /** Tokens of prompt and answer, as last reported; null: not reported. */
  get total(): number | null {
    if (this.#output === null) return this.#total;
    const prompt = this.#parts.reduce((sum, part) => sum + part, 0);
    // A stream reports 0 at its start, and the answer at its end.
    return this.#total ?? prompt + (this.#output || this.events);
  }

  pass(chunk: Buffer): void {
    const text = Buffer.concat([this.#tail, chunk]);
    // Data that lies whole in the tail was counted with its own chunk.
    const from = Math.max(0, this.#tail.length - DATA.length + 1);
    for (let at = text.indexOf(DATA, from); at >= 0; at = text.indexOf(DATA, at + DATA.length)) {
      this.events += 1;
    }
    this.#total = lastOf(TOTAL, text) ?? this.#total;
    this.#output = lastOf(OUTPUT, text) ?? this.#output;
    for (const [at, name] of PARTS.entries()) {
      this.#parts[at] = lastOf(name, text) ?? this.#parts[at] ?? 0;
    }
    this.answer = lastOf(ANSWER, text) ?? this.answer;
    this.#tail = Buffer.from(text.subarray(-TAIL_BYTES));
  }
}

function lastOf(name: Buffer, text: Buffer): number | null {
  const at = text.lastIndexOf(name);
  if (at < 0) return null;
  const from = at + name.length;
  const [digits] = /^ *\d+/.exec(text.toString("latin1", from, from + DIGITS_MAX)) ?? [];
  return digits === undefined ? null : Number(digits);
}
