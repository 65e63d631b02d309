// Owns the tests of the unary calls: hello, look-up, report, stats, flush, health.
import { Client, credentials } from "@grpc/grpc-js";
import { describe, expect, test, vi } from "vitest";
import { countBits, hasBit, ItemStatus } from "../../../src/base/block.ts";
import { KEYS_MAX, PROTOCOL_MAX } from "../../../src/base/limits/general.ts";
import type { StoreId } from "../../../src/base/native.ts";
import type * as Native from "../../../src/base/native.ts";
import { storeFlush } from "../../../src/base/native.ts";
import { ServingStatus } from "../../../src/wire/messages.ts";
import type { HelloRequest } from "../../../src/wire/messages.ts";
import { healthService, vaultService } from "../../../src/wire/service.ts";
import { corruptRecord } from "../../support/native.ts";
import { openChannel } from "../../support/raw-calls.ts";
import {
  HEADER_BYTES,
  keysOf,
  makeRecord,
  makeRecords,
  NAMESPACE,
  OTHER_NAMESPACE,
} from "../../support/records.ts";
import { closeAfterTest, openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

/** The native store opened last, through which a test changes records directly. */
const lastStore = vi.hoisted(() => ({ id: 0 as StoreId }));
vi.mock("../../../src/base/native.ts", async (importOriginal) => {
  const native = await importOriginal<typeof Native>();
  return {
    ...native,
    createStore: (options: Parameters<typeof native.createStore>[0]) => {
      lastStore.id = native.createStore(options);
      return lastStore.id;
    },
  };
});

const OPTIONS = { timeoutMs: SOON_MS, signal: new AbortController().signal };

describe("hello", () => {
  const request: HelloRequest = {
    protocolMin: 1,
    protocolMax: 1,
    clientVersion: "9",
    clientName: "a test",
    flushed: 0,
  };

  test("answers class, limits and an epoch that is new for every start", async () => {
    const vaults = [
      await openVault(),
      await openVault({ recordClass: "ssm" }),
      await openVault({ recordClass: "both" }),
    ];
    const replies = await Promise.all(
      vaults.map((vault) => openChannel(vault).unary(vaultService.Hello, request, OPTIONS)),
    );
    expect(replies.map((reply) => reply.recordClass)).toEqual([1, 2, 0]);
    expect(replies[0]).toMatchObject({ protocol: 1, recordVersion: 1, maxKeys: KEYS_MAX });
    expect(replies[0]?.epoch).toBeGreaterThan(0);
    expect(replies[0]?.epoch).not.toBe(replies[1]?.epoch);
  });

  test("takes the newest common protocol of a newer client", async () => {
    const channel = openChannel(await openVault());
    const reply = await channel.unary(
      vaultService.Hello,
      { ...request, protocolMax: PROTOCOL_MAX + 5 },
      OPTIONS,
    );
    expect(reply.protocol).toBe(PROTOCOL_MAX);
  });

  test("F24 without a common protocol it refuses and names both ranges", async () => {
    const channel = openChannel(await openVault());
    const foreign = { ...request, protocolMin: 7, protocolMax: 9, clientName: "engine-host-3" };
    await expect(channel.unary(vaultService.Hello, foreign, OPTIONS)).rejects.toMatchObject({
      details: expect.stringMatching(
        /engine-host-3 speaks protocols 7 to 9, this side speaks protocol 1/,
      ) as string,
    });
  });
});

describe("look-up", () => {
  test("of 10,000 keys is one question for the caller", async () => {
    const vault = await openVault();
    const client = openClient(vault);
    const held = makeRecords(3);
    await client.put(NAMESPACE, held, SOON_MS);
    const keys = Buffer.alloc(10_000 * 36);
    for (let index = 0; index < 10_000; index += 1) keys.writeUInt32LE(index + 1, index * 36);
    const places = [0, 4095, 9999];
    for (const [at, place] of places.entries()) held[at]?.key.copy(keys, place * 36);
    const present = await client.lookup(NAMESPACE, keys, SOON_MS);
    expect(present).toHaveLength(1250);
    expect(countBits(present, 10_000)).toBe(3);
    expect(places.map((place) => hasBit(present, place))).toEqual([true, true, true]);
    expect(vault.counters.get("lookups")).toBe(3);
    expect(vault.counters.get("lookup_keys")).toBe(10_000);
    expect(vault.counters.get("lookup_hits")).toBe(3);
    expect(await client.lookup(NAMESPACE, Buffer.alloc(0), SOON_MS)).toHaveLength(0);
  });

  test("another namespace, group or shard is another key", async () => {
    const client = openClient(await openVault());
    await client.put(NAMESPACE, [makeRecord(0)], SOON_MS);
    const keys = keysOf([makeRecord(0), makeRecord(0, { group: 1 }), makeRecord(0, { shard: 1 })]);
    expect([...(await client.lookup(NAMESPACE, keys, SOON_MS))]).toEqual([1]);
    expect([...(await client.lookup(OTHER_NAMESPACE, keys, SOON_MS))]).toEqual([0]);
  });

  test("F37 too many keys at once are refused with the limit", async () => {
    const channel = openChannel(await openVault());
    const request = { namespace: NAMESPACE, keys: Buffer.alloc((KEYS_MAX + 1) * 36) };
    await expect(channel.unary(vaultService.Lookup, request, OPTIONS)).rejects.toMatchObject({
      details: `keys in one call: ${KEYS_MAX + 1} reached, the limit is ${KEYS_MAX}`,
    });
  });
});

describe("report", () => {
  test("quarantines a bad copy, keeps a good one, and says which is which", async () => {
    const client = openClient(await openVault());
    const records = makeRecords(3);
    await client.put(NAMESPACE, records, SOON_MS);
    corruptRecord(lastStore.id, NAMESPACE, records[1]!.key, HEADER_BYTES + 5);
    const keys = keysOf([...records, makeRecord(9)]);
    const { QUARANTINED, PRESENT, MISSING } = ItemStatus;
    expect(await client.report(NAMESPACE, keys, "payload checksum", SOON_MS)).toEqual([
      PRESENT,
      QUARANTINED,
      PRESENT,
      MISSING,
    ]);
    expect([...(await client.lookup(NAMESPACE, keys, SOON_MS))]).toEqual([0b101]);
    const { counters } = await client.stats(SOON_MS);
    expect(counters).toMatchObject({ reports: 1, reported: 4, quarantined: 1 });
    // A quarantined key can be stored again.
    expect(await client.put(NAMESPACE, [records[1]!], SOON_MS)).toEqual([1]);
  });

  test("of many keys goes in bounded calls", async () => {
    const vault = await openVault();
    const client = openClient(vault);
    const records = makeRecords(150, { payloadBytes: 10 });
    await client.put(NAMESPACE, records, SOON_MS);
    const statuses = await client.report(NAMESPACE, keysOf(records), "a test", SOON_MS);
    expect(statuses).toEqual(records.map(() => ItemStatus.PRESENT));
    expect(vault.counters.get("reports")).toBe(3);
  });
});

describe("stats and flush", () => {
  test("stats count real memory and every outcome", async () => {
    const client = openClient(await openVault());
    const records = makeRecords(5, { payloadBytes: 100_000 });
    await client.put(NAMESPACE, records, SOON_MS);
    await client.put(NAMESPACE, records.slice(0, 2), SOON_MS);
    await client.take(NAMESPACE, keysOf(records), SOON_MS);
    const stats = await client.stats(SOON_MS);
    expect(stats).toMatchObject({ recordClass: 1, records: 5, namespaces: 1, reservedBytes: 0 });
    expect(stats.epoch).toBe(client.epoch);
    expect(stats.usedBytes).toBeGreaterThanOrEqual(5 * 100_192);
    expect(stats.counters).toMatchObject({
      offered: 7,
      stored: 5,
      stored_bytes: 5 * 100_192,
      present: 2,
      fetches: 1,
      fetched: 5,
      fetched_bytes: 5 * 100_192,
    });
  });

  test("flush drops one namespace, then all", async () => {
    const client = openClient(await openVault());
    const a = makeRecords(3);
    const b = makeRecords(4, { namespace: OTHER_NAMESPACE });
    await client.put(NAMESPACE, a, SOON_MS);
    await client.put(OTHER_NAMESPACE, b, SOON_MS);
    expect((await client.stats(SOON_MS)).namespaces).toBe(2);
    expect(await client.flush(NAMESPACE, SOON_MS)).toMatchObject({ records: 3 });
    expect([...(await client.lookup(NAMESPACE, keysOf(a), SOON_MS))]).toEqual([0]);
    expect([...(await client.lookup(OTHER_NAMESPACE, keysOf(b), SOON_MS))]).toEqual([0b1111]);
    const all = await client.flush(null, SOON_MS);
    expect(all.records).toBe(4);
    expect(all.bytes).toBeGreaterThan(4 * 1000);
    expect(await client.stats(SOON_MS)).toMatchObject({ records: 0, namespaces: 0 });
  });

  test("a namespace of the wrong length is refused and nothing is dropped", async () => {
    const vault = await openVault();
    const client = openClient(vault);
    await client.put(NAMESPACE, makeRecords(1), SOON_MS);
    await expect(client.flush(Buffer.alloc(31), SOON_MS)).rejects.toMatchObject({
      code: "VAULT_REFUSED",
      message: expect.stringContaining("31 bytes") as string,
    });
    expect((await client.stats(SOON_MS)).records).toBe(1);
    expect(vault.counters.get("calls_refused")).toBe(1);
    expect((await storeFlush(lastStore.id, 0, null, 0, 0)).records).toBe(1);
  });
});

describe("health", () => {
  test("the server and the vault service are serving, others are unknown", async () => {
    const vault = await openVault();
    expect(await openClient(vault).health(SOON_MS)).toBe(true);
    const channel = openChannel(vault);
    expect(await channel.unary(healthService.Check, { service: "" }, OPTIONS)).toEqual({
      status: ServingStatus.SERVING,
    });
    const other = channel.unary(healthService.Check, { service: "other" }, OPTIONS);
    await expect(other).rejects.toMatchObject({ details: "unknown service other" });
  });

  test("a watcher is told when the vault stops", async () => {
    const vault = await openVault();
    const { path, requestSerialize, responseDeserialize } = healthService.Watch;
    const raw = closeAfterTest(new Client(vault.address, credentials.createInsecure()));
    const call = raw.makeServerStreamRequest(path, requestSerialize, responseDeserialize, {
      service: "",
    });
    const seen: number[] = [];
    let isOver = false;
    call.on("data", ({ status }: { status: number }) => seen.push(status));
    call.on("end", () => {
      isOver = true;
    });
    await until(() => seen.length === 1, "the first status");
    await vault.close();
    await until(() => isOver, "the end of the watch");
    expect(seen).toEqual([ServingStatus.SERVING, ServingStatus.NOT_SERVING]);
  });
});
