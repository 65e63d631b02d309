// Owns what prompts of a model weigh: in the engine, in a vault, and on the way back.
import type { ModelShape } from "./model.ts";

/** How long a prompt's blocks travel at so many bits a second. */
export const travelS = (bytes: number, bitsPerS: number): number => (bytes * 8) / bitsPerS;

/** What stays in a vault for each token; states lie one at each boundary and are not among it. */
export function storedBytesPerToken({ full, windows }: ModelShape): number {
  return full.storedBytes + (windows?.storedBytes ?? 0);
}

/** What the engine's own cache takes for a prompt: of windows only what is looked at. */
export function engineBytes({ full, windows, states }: ModelShape, tokens: number): number {
  const seen = Math.min(tokens, windows?.tokens ?? 0);
  return full.engineBytes * tokens + (windows?.engineBytes ?? 0) * seen + (states?.bytes ?? 0);
}

/** What comes back over the link for a prompt: all of full layers, a window of the others, one state. */
export function restoredBytes({ full, windows, states }: ModelShape, tokens: number): number {
  const seen = Math.min(tokens, windows?.tokens ?? 0);
  return full.storedBytes * tokens + (windows?.storedBytes ?? 0) * seen + (states?.bytes ?? 0);
}

export interface Point {
  tokens: number;
  value: number;
}

/** A line through points that ascend, from nothing; beyond the last, as between the last two. */
export function interpolated(points: readonly Point[]): (tokens: number) => number {
  return (tokens) => {
    let before: Point = { tokens: 0, value: 0 };
    let slope = 0;
    for (const point of points) {
      slope = (point.value - before.value) / (point.tokens - before.tokens);
      if (tokens <= point.tokens) break;
      before = point;
    }
    return before.value + slope * (tokens - before.tokens);
  };
}
