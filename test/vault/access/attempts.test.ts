// Owns the proof of the pause after failed attempts: per address, forgiven with time, bounded in memory.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import {
  AUTH_FAILURES_MAX,
  AUTH_PEERS_MAX,
  AUTH_REFILL_MS,
} from "../../../src/base/limits/access.ts";
import { Attempts } from "../../../src/vault/access/attempts.ts";

let ms = 0;

beforeEach(() => {
  ms = 5_000;
  vi.spyOn(performance, "now").mockImplementation(() => ms);
});

afterEach(() => void vi.restoreAllMocks());

function fail(attempts: Attempts, address: string, times: number): boolean[] {
  return Array.from({ length: times }, () => {
    attempts.failed(address);
    return attempts.isSpent(address);
  });
}

test("a burst of failures, then one per pause", () => {
  const attempts = new Attempts();
  expect(fail(attempts, "a", AUTH_FAILURES_MAX - 1)).not.toContain(true);
  expect(attempts.isSpent("a")).toBe(false);
  expect(fail(attempts, "a", 1)).toEqual([true]);
  expect(attempts.isSpent("b")).toBe(false);
  ms += AUTH_REFILL_MS - 1;
  expect(attempts.isSpent("a")).toBe(true);
  ms += 1;
  expect(attempts.isSpent("a")).toBe(false);
  expect(fail(attempts, "a", 1)).toEqual([true]);
  ms += AUTH_REFILL_MS * AUTH_FAILURES_MAX;
  expect(fail(attempts, "a", AUTH_FAILURES_MAX)).toEqual([
    ...Array.from({ length: AUTH_FAILURES_MAX - 1 }, () => false),
    true,
  ]);
});

test("failures beyond the limit do not lengthen the pause", () => {
  const attempts = new Attempts();
  fail(attempts, "a", 100 * AUTH_FAILURES_MAX);
  ms += AUTH_REFILL_MS;
  expect(attempts.isSpent("a")).toBe(false);
});

test("the address that failed longest ago is forgotten first", () => {
  const attempts = new Attempts();
  fail(attempts, "first", AUTH_FAILURES_MAX);
  fail(attempts, "second", AUTH_FAILURES_MAX);
  attempts.failed("first");
  for (let index = 0; index < AUTH_PEERS_MAX - 1; index += 1) attempts.failed(`peer ${index}`);
  expect(attempts.isSpent("first")).toBe(true);
  expect(attempts.isSpent("second")).toBe(false);
});
