// Owns the parsing of a server-sent event stream, as OpenAI-style servers send it.

/** Takes the stream piece by piece, however it was cut, and gives back the `data` of every event that is complete. */
export class SseParser {
  #rest = "";
  #data: string[] = [];

  push(text: string): string[] {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop() ?? "";
    const events: string[] = [];
    for (const line of lines) {
      const bare = line.endsWith("\r") ? line.slice(0, -1) : line;
      if (bare === "") events.push(...this.#finish());
      else if (bare.startsWith("data:")) this.#data.push(bare.slice(5).replace(/^ /, ""));
      // Comments and other fields carry nothing the demo needs.
    }
    return events;
  }

  #finish(): string[] {
    if (this.#data.length === 0) return [];
    const event = this.#data.join("\n");
    this.#data = [];
    return [event];
  }
}
