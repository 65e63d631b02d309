// Owns the proof that a vault which gives back other bytes than it was given is found by its canary and not believed any more.
import { expect, test, vi } from "vitest";
import type * as Limits from "../../../src/limits.ts";
import { createLogger } from "../../../src/log.ts";
import { OwnRecords } from "../../../src/sidecar/vaults/own-records.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { forgeStored, openSidecar } from "../../support/sidecars.ts";
import { openClient, openVault, until } from "../../support/vaults.ts";

vi.mock("../../../src/limits.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  CANARY_INTERVAL_MS: 40,
  QUARANTINE_MS: 5_000,
}));

const PAGE = 8192;

test("F9 a vault that forges records is quarantined: an alarm, and no hit from it until its time is over", async () => {
  const vault = await openVault();
  const made = vi.spyOn(OwnRecords, "open");
  const lines: string[] = [];
  const destination = { write: (line: string): void => void lines.push(line) };
  const logger = createLogger("test", { level: "error", tty: false, destination });
  const kv = openClient(vault);
  const sidecar = await openSidecar({ when: "always", vaults: { kv, ssm: null }, logger });
  const { counters } = sidecar;
  const engine = await FakeEngine.start(sidecar.socketPath);
  const blocks = makeBlocks("canary", 4, PAGE);
  engine.save(blocks);
  await until(() => counters.get("blocks_saved") === 4, "saves");
  await until(() => counters.get("canary_checks") > 3, "checks");
  expect(counters.get("canary_missing")).toBe(1);
  const good = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(good.placed.get(0)).toHaveLength(4);
  for (const [index, block] of blocks.entries()) {
    expect(engine.holds(good, index, block)).toBe(true);
  }
  engine.release(good.plan);
  expect(counters.get("canary_wrong")).toBe(0);

  const [[namespace] = [Buffer.alloc(0)]] = made.mock.calls;
  const own = await (made.mock.results[0]!.value as Promise<OwnRecords>);
  for (const { key } of own.all) forgeStored(namespace, key);
  await until(() => counters.get("canary_wrong") === 1, "the canary");
  expect(sidecar.status().vaults.kv[0]!.state).toBe("quarantined");
  expect(lines.join("")).toMatch(/vault quarantined: it gave back other bytes/);
  // Neither from the vault, nor what came from it before.
  const bad = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect([bad.reason, bad.placed.size]).toEqual(["vault_down", 0]);
  engine.release(bad.plan);
  await until(() => counters.get("canary_wrong") === 2, "the canary to decide again");

  // It has lost what it forged.
  await openClient(vault).flush(namespace, 5000);
  await until(() => sidecar.status().vaults.kv[0]!.state === "up", "the quarantine to end");
  const again = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(again.reason).toBe("complete");
});

test("a vault that is what it should be is checked again and again, and never suspected", async () => {
  const vault = await openVault();
  const kv = openClient(vault);
  const { counters, status } = await openSidecar({ vaults: { kv, ssm: null } });
  await until(() => counters.get("canary_checks") > 20, "checks");
  expect([counters.get("canary_missing"), counters.get("canary_wrong")]).toEqual([1, 0]);
  // Gone from the vault, as with any eviction: stored anew, and no alarm.
  await openClient(vault).flush(null, 5000);
  await until(() => counters.get("canary_missing") === 2, "the loss");
  expect([counters.get("canary_wrong"), status().vaults.kv[0]!.state]).toEqual([0, "up"]);
});
