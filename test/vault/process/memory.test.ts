// Owns the proof that a vault without a budget takes a share of what is free, and one with a budget exactly that.
import { expect, test } from "vitest";
import { localVaultBudget, vaultBudget } from "../../../src/vault/process/memory.ts";

test("a budget that is configured is taken as it is", () => {
  expect([vaultBudget(7), localVaultBudget(7)]).toEqual([7, 7]);
});

test("half of the free memory, a quarter beside an engine", () => {
  const free = process.availableMemory();
  expect(vaultBudget(null) / free).toBeCloseTo(0.5, 1);
  expect(localVaultBudget(null) / free).toBeCloseTo(0.25, 1);
});
