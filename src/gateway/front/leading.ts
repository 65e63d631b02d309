// Owns telling an answer's first event from comments before it, such as an engine's keep-alive lines.

const LINE_FEED = 10;
const COLON = 58;
const CARRIAGE_RETURN = 13;

/** Drops empty lines and comments (lines that begin with a colon) until the first other byte of a line. */
export class Leading {
  #isInComment = false;

  /** Returns the chunk from its first other line on; null: it has none. */
  take(chunk: Buffer): Buffer | null {
    for (let at = 0; at < chunk.length; at += 1) {
      const byte = chunk[at];
      if (byte === LINE_FEED) this.#isInComment = false;
      else if (byte === COLON) this.#isInComment = true;
      else if (!this.#isInComment && byte !== CARRIAGE_RETURN) return chunk.subarray(at);
    }
    return null;
  }
}
