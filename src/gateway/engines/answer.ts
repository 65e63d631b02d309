// Owns reading an engine's text answer as a whole, up to a limit.
import type { Readable } from "node:stream";

/** Returns the text; null: it has more than `most` bytes. Throws where the engine breaks off. */
export function textWithin(body: Readable, most: number): Promise<string | null> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    const end = (text: string | null): void => {
      body.off("data", onData).off("end", onEnd);
      if (text === null) body.destroy();
      resolve(text);
    };
    const onData = (chunk: Buffer): void => {
      bytes += chunk.length;
      chunks.push(chunk);
      if (bytes > most) end(null);
    };
    const onEnd = (): void => end(Buffer.concat(chunks).toString("utf8"));
    // Later errors change nothing.
    body.on("data", onData).once("end", onEnd).on("error", reject);
  });
}
