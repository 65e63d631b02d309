// Owns counting an answer's tokens as it passes: the engine's own count, else its events; nothing is parsed.

const EVENT_END = Buffer.from("\n\n");
/** Inside a JSON string the quote would be escaped, so this is the engine's own field. */
const TOTAL = Buffer.from('"total_tokens":');
const ANSWER = Buffer.from('"completion_tokens":');
const DIGITS_MAX = 24;
/** Bytes kept of each chunk, because a name and its number may be cut in two. */
const TAIL_BYTES = ANSWER.length + DIGITS_MAX;

export class Meter {
  #tail: Buffer = Buffer.alloc(0);
  /** Tokens of prompt and answer, as last reported; null: not reported. */
  total: number | null = null;
  /** Tokens of the answer, as last reported; null: not reported. */
  answer: number | null = null;
  /** Events so far: one for each token, where an engine streams. */
  events = 0;

  pass(chunk: Buffer): void {
    for (let at = chunk.indexOf(EVENT_END); at >= 0; at = chunk.indexOf(EVENT_END, at + 2)) {
      this.events += 1;
    }
    const text = Buffer.concat([this.#tail, chunk]);
    this.total = lastOf(TOTAL, text) ?? this.total;
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
