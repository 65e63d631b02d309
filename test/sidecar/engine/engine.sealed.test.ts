// Owns the proof that with record keys a vault stores only sealed records, and engines notice nothing.
import { beforeAll, expect, test } from "vitest";
import { hasBit, ItemStatus, packKeys } from "../../../src/base/block.ts";
import {
  recordKeysNamespace,
  recordKeysSet,
  recordKeysStatus,
  recordKeysTenant,
  writeRecord,
} from "../../../src/base/native.ts";
import { RawLane, rawRecords } from "../../support/raw-calls.ts";
import { noise } from "../../support/records.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { openSidecar } from "../../support/sidecars.ts";
import { openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

const PAGE = 8192;
const HEADER_BYTES = 192;
const SEALED_EXTRA_BYTES = 240;
const COUNT = 12;

beforeAll(() => recordKeysSet(Buffer.from("5a".repeat(32))));

test("blocks come back, and the vault has neither them nor their namespace", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  const sidecar = await openSidecar({ vaults: { kv: client, ssm: null } });
  const engine = await FakeEngine.start(sidecar.socketPath);
  const blocks = makeBlocks("sealed", COUNT, PAGE);
  engine.save(blocks);
  await until(() => sidecar.counters.get("blocks_saved") === COUNT, "the saves");
  const sealed = PAGE + HEADER_BYTES + SEALED_EXTRA_BYTES;
  expect(sidecar.counters.get("bytes_sent")).toBe(COUNT * sealed);

  const plan = engine.prefetch(hashesOf(blocks));
  const view = await engine.done(plan);
  expect(view.reason).toBe("complete");
  for (const [at, block] of blocks.entries()) expect(engine.holds(view, at, block)).toBe(true);
  expect(sidecar.counters.get("bytes_fetched")).toBe(COUNT * sealed);
  expect(sidecar.status().counters["records_unopened"]).toBe(0);

  // Looked up by the vault's own names.
  const keys = packKeys(hashesOf(blocks), 0, 0);
  const held = await client.lookup(engine.namespace, keys, SOON_MS);
  expect(blocks.some((_, at) => hasBit(held, at))).toBe(false);
  const name = recordKeysNamespace(engine.namespace);
  const named = await client.lookup(name, keys, SOON_MS);
  expect(blocks.every((_, at) => hasBit(named, at))).toBe(true);
  const record = (await rawRecords(vault, name, keys.subarray(0, 36))).get(0)!;
  expect(record.length).toBe(sealed);
  expect(record.subarray(HEADER_BYTES, HEADER_BYTES + 4).toString()).toBe("TKVS");
  expect(record.includes(engine.namespace)).toBe(false);
  expect(record.includes(blocks[0]!.pages[0]!.subarray(100, 116))).toBe(false);
});

test("a record that no key opens is a miss, counted, and the vault is not blamed", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  const sidecar = await openSidecar({ vaults: { kv: client, ssm: null } });
  const engine = await FakeEngine.start(sidecar.socketPath);
  const [block] = makeBlocks("forged", 1, PAGE);
  const namespace = recordKeysNamespace(engine.namespace);
  // The right length and checksums, but sealed without a key.
  const payload = noise(PAGE + SEALED_EXTRA_BYTES, 1);
  const record = opaque({ namespace, blockHash: block!.hash }, payload);
  const lane = await RawLane.open(vault);
  lane.offer([{ key: packKeys(block!.hash, 0, 0), record }], [record.length], namespace);
  await lane.offered();
  lane.chunk(0, record);
  expect(await lane.settled(1)).toEqual(new Map([[0, ItemStatus.ACCEPTED]]));
  const before = recordKeysStatus().unopened;
  const view = await engine.done(engine.prefetch(block!.hash));
  expect(view.reason).toBe("end_of_hit");
  expect(view.placed.size).toBe(0);
  expect(sidecar.status().counters["records_unopened"]).toBe(before + 1);
  expect(sidecar.counters.get("bad_records")).toBe(0);
  expect(vault.counters.get("reports")).toBe(0);
});

function opaque(identity: { namespace: Buffer; blockHash: Buffer }, payload: Buffer): Buffer {
  const shape = { codec: 0, recordClass: 1, fidelity: 0, layout: 1, group: 0, shard: 0 };
  const counts = { shardCount: 1, dtype: 0, parts: 0, tokens: 1, layers: 1 };
  const none = { heads: 0, dimK: 0, dimV: 0, endTokens: 0, parentHash: Buffer.alloc(32) };
  const bytes = { payloadBytes: payload.length, sourceBytes: payload.length };
  return writeRecord({ ...shape, ...counts, ...none, ...bytes, ...identity }, payload);
}

test("a tenant is flushed by the name that the keys give it, in the vault and in the arena", async () => {
  const vault = await openVault();
  const sidecar = await openSidecar({ vaults: { kv: openClient(vault), ssm: null } });
  const engine = await FakeEngine.start(sidecar.socketPath);
  engine.tenant = 7;
  const blocks = makeBlocks("tenant", COUNT, PAGE);
  engine.save(blocks);
  await until(() => sidecar.counters.get("blocks_saved") === COUNT, "the saves");
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  engine.release(view.plan);
  const kept = (): number => sidecar.status().engines[0]!.retainedBlocks;
  await until(() => kept() === COUNT, "the copies");
  const admin = openClient(vault);
  const flush = async (tenant: number) => {
    const { records, sidecars } = await admin.flush(null, SOON_MS, null, null, tenant);
    return { records, confirmed: sidecars.map(({ confirmed }) => confirmed) };
  };
  await until(async () => (await flush(8)).confirmed.includes(true), "the sidecar to watch");
  expect(await flush(7)).toEqual({ records: 0, confirmed: [true] });
  expect(kept()).toBe(COUNT);
  expect(await flush(recordKeysTenant(7))).toEqual({ records: COUNT, confirmed: [true] });
  expect(kept()).toBe(0);
});
