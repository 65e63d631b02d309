// Owns the sizes of a model's prompts: in the engine, in a vault, and over the link.
import type { ModelShape } from "./model.ts";
import type { Block } from "./stores.ts";

/** Seconds to transfer bytes at a rate in bits a second. */
export const travelS = (bytes: number, bitsPerS: number): number => (bytes * 8) / bitsPerS;

/** Bytes in a vault per token, without states, which exist only at boundaries. */
export function storedBytesPerToken({ full, windows }: ModelShape): number {
  return full.storedBytes + (windows?.storedBytes ?? 0);
}

/** Records of one block: one of the full layers, one of the window layers. */
export function storedBlocks({ full, windows }: ModelShape, tokens: number): Block[] {
  const perToken = [full.storedBytes, windows?.storedBytes ?? 0].filter((bytes) => bytes > 0);
  return perToken.map((bytes) => ({ tokens, bytes: bytes * tokens }));
}

/** Bytes of a prompt in the engine's own cache: of window layers only the window's tokens. */
export function engineBytes({ full, windows, states }: ModelShape, tokens: number): number {
  const seen = Math.min(tokens, windows?.tokens ?? 0);
  return full.engineBytes * tokens + (windows?.engineBytes ?? 0) * seen + (states?.bytes ?? 0);
}

/** Bytes over the link to restore a prompt: full layers, one window of window layers, one state. */
export function restoredBytes({ full, windows, states }: ModelShape, tokens: number): number {
  const seen = Math.min(tokens, windows?.tokens ?? 0);
  return full.storedBytes * tokens + (windows?.storedBytes ?? 0) * seen + (states?.bytes ?? 0);
}

export interface Point {
  tokens: number;
  value: number;
}

/** Piecewise linear through ascending points, from the origin; extrapolates after the last. */
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
