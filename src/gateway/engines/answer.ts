// Owns reading an engine's text answer as a whole, up to a limit.
import type { Readable } from "node:stream";

/** Returns the text; null: it has more than `most` characters. Throws where the engine breaks off. */
export async function textWithin(body: Readable, most: number): Promise<string | null> {
  let text = "";
  for await (const chunk of body.setEncoding("utf8") as AsyncIterable<string>) {
    text += chunk;
    if (text.length > most) return null;
  }
  return text;
}
