// Owns a link's rate as a test wants it: what the core would say.
import type { Goodput } from "../../src/native.ts";

export function goodputOf(rate: number, idleMs = 0): Goodput {
  const nothing = (): void => {};
  return {
    begin: nothing,
    moved: nothing,
    end: nothing,
    rate: () => rate,
    idleMs: () => idleMs,
  };
}
