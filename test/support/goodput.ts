// Owns a fake of the core's measured link rate, set by the test.
import type { Goodput } from "../../src/base/native.ts";

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
