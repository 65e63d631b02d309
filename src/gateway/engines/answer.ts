// Owns reading an engine's answer that is a text: whole, and never without an end.
import type { Readable } from "node:stream";

/** null: it is longer. Throws where the engine breaks off. */
export async function textWithin(body: Readable, most: number): Promise<string | null> {
  let text = "";
  for await (const chunk of body.setEncoding("utf8") as AsyncIterable<string>) {
    text += chunk;
    if (text.length > most) return null;
  }
  return text;
}
