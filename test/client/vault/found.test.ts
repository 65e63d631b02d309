// Owns the proof that a vault's hit rate covers requests only, and leaves out audits and re-offers.
import { expect, test } from "vitest";
import { UNCOUNTED } from "../../../src/client/source.ts";
import { keysOf, makeRecords, NAMESPACE } from "../../support/records.ts";
import { openShared, regionAddress } from "../../support/regions.ts";
import { openScene, saveAll } from "../../support/scene.ts";
import { hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { openClient, openVault, SOON_MS } from "../../support/vaults.ts";
import type { TestVault } from "../../support/vaults.ts";

const PAGE = 8192;

function counted({ counters }: TestVault): number[] {
  return [counters.get("lookups"), counters.get("lookup_keys"), counters.get("lookup_hits")];
}

test.each([
  ["lanes", 2],
  ["gRPC alone", 0],
])("over %s a look-up that no request asks is answered and not counted", async (_way, lanes) => {
  const vault = await openVault();
  const records = makeRecords(3);
  await openClient(vault).put(NAMESPACE, records, SOON_MS);
  const client = openClient(vault, "kv", { lanes });
  const before = counted(vault);
  const asked = await client.lookup(NAMESPACE, keysOf(records), SOON_MS, UNCOUNTED);
  expect([...asked]).toEqual([0b111]);
  expect(counted(vault)).toEqual(before);
  await client.lookup(NAMESPACE, keysOf(records), SOON_MS);
  expect(counted(vault)).toEqual(before.map((count, at) => count + [1, 3, 3][at]!));
});

test("shared memory counts the same", async () => {
  const shared = await openShared(regionAddress());
  const keys = keysOf(makeRecords(3));
  await shared.lookup(NAMESPACE, keys, SOON_MS, UNCOUNTED);
  expect((await shared.stats(SOON_MS)).counters).toMatchObject({ lookup_keys: 0 });
  await shared.lookup(NAMESPACE, keys, SOON_MS);
  expect((await shared.stats(SOON_MS)).counters).toMatchObject({ lookup_keys: 3 });
});

test("an audit finds what the vault holds and leaves its hit rate alone; a request's look-up counts", async () => {
  const scene = await openScene();
  const { engine, vault } = scene;
  const blocks = makeBlocks("audited", 3, PAGE);
  await saveAll(scene, blocks);
  const before = counted(vault);
  const groups = [{ group: 0, class: "kv", hashes: hashesOf(blocks), from: 0 }];
  engine.scheduler.send({ t: "audit", n: 1, groups });
  const { groups: found } = await engine.scheduler.wait("audited");
  expect([...(found as { held: Uint8Array }[])[0]!.held]).toEqual([0b111]);
  expect(counted(vault)).toEqual(before);

  const others = makeBlocks("request", 2, PAGE);
  await engine.done(engine.prefetch(hashesOf(others)));
  expect(counted(vault)).toEqual([before[0]! + 1, before[1]! + 2, before[2]!]);
});
