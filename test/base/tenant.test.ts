// Owns the proof that a tenant's number is what the shim makes of its salt (python-shim/tests/test_tenants.py).
import { expect, test } from "vitest";
import { isTenant, tenantOf } from "../../src/base/tenant.ts";

test("the number of a salt is what the shim makes of it", () => {
  expect(tenantOf("a")).toBe(156_759_798_606_283);
  expect(tenantOf("Mandant ä 🦀")).toBe(101_642_226_882_119);
  expect(tenantOf("")).toBe(0);
});

test("a tenant's number has 48 bits", () => {
  expect([0, 1, 2 ** 48 - 1].every(isTenant)).toBe(true);
  expect([-1, 0.5, 2 ** 48, Number.NaN, "1", null].some(isTenant)).toBe(false);
});
