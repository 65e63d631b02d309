// Owns the tests of one vault's part in keeping the pool's list: its limits, and whom it asks.
import { createHash } from "node:crypto";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { LISTED_MACHINES_MAX, LISTED_VAULTS_MAX } from "../../src/base/limits/pool.ts";
import { PoolKey } from "../../src/discovery/entry.ts";
import type { Entry } from "../../src/discovery/entry.ts";
import { Gossip } from "../../src/discovery/gossip.ts";
import type { GossipOptions } from "../../src/discovery/gossip.ts";
import { certify } from "../../src/vault/access/identity.ts";
import { poolKey, startPooled } from "../support/pooled.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, logger, until } from "../support/vaults.ts";

const NOTHING = Buffer.alloc(0);

function open(options: Partial<GossipOptions> & Pick<GossipOptions, "key">): Gossip {
  const file = join(testDirectory(), "pool.json");
  const all = { peers: [], file, certificate: null, logger, onRefused: () => {}, ...options };
  return closeAfterTest(new Gossip(all));
}

const say = (gossip: Gossip, entries: readonly Entry[]): object =>
  gossip.answer({ digest: NOTHING, entries: entries.map((entry) => gossip.key.sign(entry)) });

/** As long as one of a company's authority. */
const certificate = `${"A".repeat(64)}\n`.repeat(40);

const vaultAt = (port: number): Entry => ({
  kind: "vault",
  address: `127.0.0.1:${port}`,
  class: "kv",
  certificate,
  gone: false,
  version: 1,
});

test("a full list says that it is full, and is read again after a restart", () => {
  const key = PoolKey.read(poolKey());
  const file = join(testDirectory(), "pool.json");
  const onRefused = vi.fn<(count: number) => void>();
  const warn = vi.spyOn(logger, "warn");
  const gossip = open({ key, file, onRefused });
  const name = "n".repeat(60);
  const machines = Array.from({ length: LISTED_MACHINES_MAX }, (_none, at): Entry => {
    const digest = createHash("sha256").update(`${at}`).digest("hex");
    return { kind: "machine", digest, name, role: "write", gone: true, version: 1 };
  });
  const vaults = Array.from({ length: LISTED_VAULTS_MAX }, (_none, at) => vaultAt(at + 1));
  say(gossip, [...machines, ...vaults]);
  expect(warn).not.toHaveBeenCalled();
  say(gossip, [vaultAt(1000)]);
  say(gossip, [vaultAt(1001)]);
  expect(warn.mock.calls.map(([, text]) => text)).toEqual([expect.stringContaining("no room")]);
  expect(onRefused).not.toHaveBeenCalled();
  const again = open({ key, file });
  const counts = [again.book.vaults.length, again.book.machines.length];
  expect(counts).toEqual([LISTED_VAULTS_MAX, LISTED_MACHINES_MAX]);
  writeFileSync(file, " ".repeat(8_000_000));
  expect(() => open({ key, file })).toThrow("the limit is");
});

test("a vault that was taken out while it spoke in the clear is asked at intervals, now that it does not", async () => {
  const path = poolKey();
  const key = PoolKey.read(path);
  const { address } = await startPooled({ key: path, isClosed: true });
  const { certPem } = certify({ usage: "server", commonName: "v", hosts: ["here"] });
  const asked = vi.spyOn(key, "tokenFor");
  const gossip = open({ key, peers: [address], certificate: Buffer.from(certPem) });
  say(gossip, [{ ...vaultAt(1), address, certificate: null, gone: true, version: 9 } as Entry]);
  gossip.start({ address: "127.0.0.1:9", class: "kv" });
  await until(() => asked.mock.calls.length > 0, "the first call");
  await new Promise((resolve) => {
    setTimeout(resolve, 1_500);
  });
  expect(asked.mock.calls.length).toBeLessThan(10);
});

test("a vault whose pool_key is another says once that the others refuse it", async () => {
  const first = await startPooled({ key: poolKey(), isClosed: true });
  const other = await startPooled({ key: poolKey(), isClosed: true, peers: [first.address] });
  const warned = (): string[] =>
    other
      .said()
      .split("\n")
      .filter((line) => line.includes("another vault of the pool refuses this vault"));
  await until(() => warned().length > 0, "the warning");
  expect(JSON.parse(warned()[0]!)).toMatchObject({
    level: "warn",
    vault: first.address,
    fix: expect.stringContaining("[vault] pool_key must be the same") as string,
  });
});
