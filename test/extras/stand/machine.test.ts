// Owns the proof of what the demo reads off a machine.
import { expect, test } from "vitest";
import {
  bestDtype,
  parseCores,
  parseQuota,
  thisMachine,
} from "../../../src/extras/stand/machine.ts";

test("processor lists", () => {
  expect(parseCores("0-2,5")).toEqual([0, 1, 2, 5]);
  expect(parseCores("7")).toEqual([7]);
  expect(parseCores("")).toEqual([]);
});

test("a container's share, at least one processor", () => {
  expect(parseQuota("250000 100000\n")).toBe(2);
  expect(parseQuota("50000 100000\n")).toBe(1);
  expect(parseQuota("max 100000\n")).toBeNull();
  expect(parseQuota("")).toBeNull();
});

test("bfloat16 only where the processor computes it", () => {
  expect(bestDtype("flags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16\n")).toBe("bfloat16");
  expect(bestDtype("Features\t: fp asimd bf16\n")).toBe("bfloat16");
  expect(bestDtype("flags\t\t: fpu avx2 avx512f avx512_bf16x\n")).toBe("float32");
  expect(bestDtype("")).toBe("float32");
});

test("this machine has cores", () => {
  const { cores } = thisMachine();
  expect(cores.length).toBeGreaterThan(0);
  expect(new Set(cores).size).toBe(cores.length);
});
