// Owns the proof of the figures `tierkv status` shows.
import { expect, test } from "vitest";
import { inspectSidecar, inspectVault, percentile } from "../../src/cli/inspect.ts";
import { checkConfig } from "../../src/config/check.ts";
import { nowMs } from "../../src/time.ts";

test("percentiles are measured values, by nearest rank", () => {
  const samples = [5, 1, 4, 2, 3, 10, 9, 8, 7, 6];
  expect([percentile(samples, 0.5), percentile(samples, 0.99), percentile(samples, 0)]).toEqual([
    5, 10, 1,
  ]);
  expect(percentile([7], 0.99)).toBe(7);
});

test("a target that is down is told within the time-out, with the reason and nothing else", async () => {
  const { config } = checkConfig('[sidecar]\nsocket = "/no/such.sock"', null, {});
  const startMs = nowMs();
  const [vault, sidecar] = await Promise.all([
    inspectVault(
      { name: "kv_cold", role: "kv_cold", classes: ["kv"], address: "127.0.0.1:1", isOwn: false },
      config!,
    ),
    inspectSidecar(config!),
  ]);
  expect(nowMs() - startMs).toBeLessThan(3000);
  for (const status of [vault, sidecar]) {
    const { target, address, reachable, error, ...figures } = status;
    expect([typeof target, typeof address, reachable]).toEqual(["string", "string", false]);
    expect(error).toContain("does not answer");
    expect(new Set(Object.values(figures))).toEqual(new Set([null]));
  }
});
