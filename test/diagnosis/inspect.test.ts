// Owns the proof of the figures `tierkv status` shows.
import { expect, test } from "vitest";
import { nowMs } from "../../src/base/time.ts";
import { checkConfig } from "../../src/config/check.ts";
import { inspect, percentile, withSidecarsCounts } from "../../src/diagnosis/inspect.ts";
import { SOON_MS } from "../support/vaults.ts";

test("percentiles are measured values, by nearest rank", () => {
  const samples = [5, 1, 4, 2, 3, 10, 9, 8, 7, 6];
  expect([percentile(samples, 0.5), percentile(samples, 0.99), percentile(samples, 0)]).toEqual([
    5, 10, 1,
  ]);
  expect(percentile([7], 0.99)).toBe(7);
});

test("what a store's clients count is the sidecar's count, not this command's", async () => {
  const toml = '[sidecar]\nsocket = "/no/such.sock"\n[cluster]\nkv_cold = "127.0.0.1:1"\n';
  const { targets } = await inspect(checkConfig(toml, null, {}).config!);
  const vault = { ...targets[1]!, counters: { requests_reads: 12 } };
  const store = { ...vault, address: "s3://bucket/x" };
  const counts = { requests_reads: 300 };
  const sidecar = { vaults: { kv: [{ address: store.address, counts }], ssm: [] } };
  expect(withSidecarsCounts(store, sidecar as never).counters).toEqual(counts);
  // Behind a Valkey, whose counts are its own.
  const near = { address: "valkey://h:1", counts: { lookup_keys: 1 } };
  const tiers = {
    vaults: { kv: [{ ...near, behind: { address: store.address, counts } }], ssm: [] },
  };
  expect(withSidecarsCounts(store, tiers as never).counters).toEqual(counts);
  expect(withSidecarsCounts({ ...store, address: near.address }, tiers as never).counters).toEqual(
    near.counts,
  );
  expect(withSidecarsCounts(store, null).counters).toBeNull();
  expect(withSidecarsCounts(vault, sidecar as never)).toBe(vault);
});

test("a target that is down is told within the time-out, with the reason and nothing else", async () => {
  const toml = '[sidecar]\nsocket = "/no/such.sock"\n[cluster]\nkv_cold = "127.0.0.1:1"\n';
  const { config } = checkConfig(toml, null, {});
  const startMs = nowMs();
  const seen = await inspect(config!);
  expect(nowMs() - startMs).toBeLessThan(SOON_MS / 2);
  expect([seen.sidecar, seen.targets.length]).toEqual([null, 2]);
  for (const status of seen.targets) {
    const { target, address, reachable, refused, error, ...figures } = status;
    expect([typeof target, typeof address]).toEqual(["string", "string"]);
    expect([reachable, refused]).toEqual([false, false]);
    expect(error).toContain("does not answer");
    expect(new Set(Object.values(figures))).toEqual(new Set([null]));
  }
});
