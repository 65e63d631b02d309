// Owns the tests of stores: accepted records, refused ones, and no reservation that outlives its offer.
import { describe, expect, test } from "vitest";
import { hasBit, ItemStatus } from "../../src/base/block.ts";
import { KEYS_MAX } from "../../src/base/limits/general.ts";
import { RawLane } from "../support/raw-calls.ts";
import { flipped, keysOf, makeRecord, makeRecords, NAMESPACE } from "../support/records.ts";
import { MIB, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";

const { ACCEPTED, PRESENT, BAD_RECORD, WRONG_CLASS, WRONG_KEY, TOO_LARGE } = ItemStatus;
const { OVER_BUDGET, INCOMPLETE } = ItemStatus;

describe("a vault of both classes", () => {
  test("takes and gives back either", async () => {
    const vault = await openVault({ recordClass: "both" });
    for (const name of ["kv", "ssm"] as const) {
      const client = openClient(vault, name);
      const records = makeRecords(3, { recordClass: name, group: name === "kv" ? 0 : 1 });
      expect(await client.put(NAMESPACE, records, SOON_MS)).toEqual(Array(3).fill(ACCEPTED));
      const fetched = await client.take(NAMESPACE, keysOf(records), SOON_MS);
      expect([...fetched.records.values()]).toEqual(records.map(({ record }) => record));
    }
  });
});

describe("put if absent", () => {
  test("records of many sizes come back byte for byte", async () => {
    const client = openClient(await openVault());
    const sizes = [
      1,
      2,
      63,
      1000,
      4096,
      65_535,
      65_536,
      MIB - 240,
      MIB - 192,
      MIB,
      MIB + 1,
      5 * MIB,
    ];
    const records = sizes.map((payloadBytes, index) => makeRecord(index, { payloadBytes }));
    const statuses = await client.put(NAMESPACE, records, SOON_MS);
    expect(statuses).toEqual(sizes.map(() => ACCEPTED));

    const fetched = await client.take(NAMESPACE, keysOf(records), SOON_MS);
    for (const [item, { record }] of records.entries()) {
      expect(fetched.records.get(item)?.equals(record), `item ${item}`).toBe(true);
    }
  });

  test("the second offer is PRESENT and sends nothing", async () => {
    const vault = await openVault();
    const client = openClient(vault);
    const records = makeRecords(3);
    await client.put(NAMESPACE, records.slice(0, 2), SOON_MS);
    const storedBytes = vault.counters.get("stored_bytes");
    const statuses = await client.put(NAMESPACE, records, SOON_MS);
    expect(statuses).toEqual([PRESENT, PRESENT, ACCEPTED]);
    const third = records[2]?.record.length ?? 0;
    expect(vault.counters.get("stored_bytes")).toBe(storedBytes + third);
    expect(vault.counters.get("present")).toBe(2);
  });

  test("F29 of two clients that offer the same at once one stores, both find it", async () => {
    const vault = await openVault();
    const clients = [openClient(vault), openClient(vault)];
    const records = makeRecords(20, { payloadBytes: 200_000 });
    const statuses = await Promise.all(
      clients.map((client) => client.put(NAMESPACE, records, SOON_MS)),
    );
    for (const item of records.keys()) {
      expect(new Set(statuses.map((all) => all[item]))).toEqual(new Set([ACCEPTED, PRESENT]));
    }
    expect(vault.counters.get("stored")).toBe(records.length);
  });

  test("a key on its way is PRESENT for others and cannot be looked up", async () => {
    const vault = await openVault();
    const [one] = makeRecords(1);
    const slow = await RawLane.open(vault);
    slow.offer([one!]);
    await slow.offered();
    const client = openClient(vault);
    expect(await client.put(NAMESPACE, [one!], SOON_MS)).toEqual([PRESENT]);
    expect(hasBit(await client.lookup(NAMESPACE, one!.key, SOON_MS), 0)).toBe(false);
    slow.chunk(0, one!.record);
    expect(await slow.settled(1)).toEqual(new Map([[0, ACCEPTED]]));
    expect(hasBit(await client.lookup(NAMESPACE, one!.key, SOON_MS), 0)).toBe(true);
  });

  test("F17 a budget that is full evicts old records and stays below its limit", async () => {
    const vault = await openVault({ maxBytes: 16 * MIB });
    const client = openClient(vault);
    const records = makeRecords(30, { payloadBytes: MIB });
    for (let at = 0; at < records.length; at += 5) {
      const statuses = await client.put(NAMESPACE, records.slice(at, at + 5), SOON_MS);
      expect(statuses).toEqual(Array.from({ length: 5 }, () => ACCEPTED));
    }
    const stats = await client.stats(SOON_MS);
    expect(stats.usedBytes).toBeLessThanOrEqual(16 * MIB);
    expect(stats.records).toBeGreaterThan(10);
    expect(stats.counters["evicted"]).toBe(30 - stats.records);
  });
});

describe("refusals", () => {
  test("F11 a bad checksum, a wrong key and a wrong class are found on accept, the rest of the batch is stored", async () => {
    const vault = await openVault();
    const client = openClient(vault);
    const [good, payload, header, key, late] = makeRecords(5);
    const ssm = makeRecord(5, { recordClass: "ssm" });
    const batch = [
      good!,
      { key: payload!.key, record: flipped(payload!.record, -1) },
      { key: header!.key, record: flipped(header!.record, 44) },
      { key: key!.key, record: makeRecord(99).record },
      ssm,
      late!,
    ];
    const statuses = await client.put(NAMESPACE, batch, SOON_MS);
    expect(statuses).toEqual([ACCEPTED, BAD_RECORD, BAD_RECORD, WRONG_KEY, WRONG_CLASS, ACCEPTED]);
    const present = await client.lookup(NAMESPACE, keysOf(batch), SOON_MS);
    expect(batch.map((_, item) => hasBit(present, item))).toEqual([
      true,
      false,
      false,
      false,
      false,
      true,
    ]);
    const { counters, reservedBytes } = await client.stats(SOON_MS);
    expect(counters).toMatchObject({
      stored: 2,
      refused_bad_record: 2,
      refused_wrong_key: 1,
      refused_wrong_class: 1,
    });
    expect(reservedBytes).toBe(0);
  });

  test("a record of another namespace has the wrong key", async () => {
    const client = openClient(await openVault());
    const [record] = makeRecords(1, { namespace: Buffer.alloc(32, 7) });
    expect(await client.put(NAMESPACE, [record!], SOON_MS)).toEqual([WRONG_KEY]);
  });

  test("the other class is refused", async () => {
    const client = openClient(await openVault());
    const records = makeRecords(1, { recordClass: "ssm" });
    expect(await client.put(NAMESPACE, records, SOON_MS)).toEqual([WRONG_CLASS]);
  });

  test("a record above the limit is TOO_LARGE, and nothing is reserved for it", async () => {
    const vault = await openVault({ maxBytes: 16 * MIB });
    const small = makeRecord(0);
    const large = makeRecord(1, { payloadBytes: 17 * MIB });
    const statuses = await openClient(vault).put(NAMESPACE, [large, small], SOON_MS);
    expect(statuses).toEqual([TOO_LARGE, ACCEPTED]);
    expect(vault.stats().reservedBytes).toBe(0);
  });

  test("over budget while others hold the room, accepted once they let go", async () => {
    const vault = await openVault({ maxBytes: 4 * MIB });
    const client = openClient(vault);
    const holder = await RawLane.open(vault);
    holder.offer([makeRecord(0, { payloadBytes: 3 * MIB })]);
    await holder.offered();
    const late = makeRecord(1, { payloadBytes: 2 * MIB });
    expect(await client.put(NAMESPACE, [late], SOON_MS)).toEqual([OVER_BUDGET]);
    holder.cancel();
    await until(async () => (await client.stats(SOON_MS)).reservedBytes === 0, "the reservation");
    expect(await client.put(NAMESPACE, [late], SOON_MS)).toEqual([ACCEPTED]);
  });

  test("records under way may hold half the vault, all together; more is refused and pushes nothing out", async () => {
    const vault = await openVault({ maxBytes: 1024 * MIB });
    const client = openClient(vault);
    const records = makeRecords(6);
    await client.put(NAMESPACE, records.slice(0, 2), SOON_MS);
    for (const holder of [2, 3]) {
      const raw = await RawLane.open(vault);
      raw.offer([records[holder]!], [180 * MIB]);
      await raw.offered();
    }
    const late = await RawLane.open(vault);
    late.offer(records.slice(4), [180 * MIB, 70 * MIB]);
    expect(await late.offered()).toEqual([OVER_BUDGET, ItemStatus.UNSPECIFIED]);
    const stats = await client.stats(SOON_MS);
    expect(stats.counters).toMatchObject({ evicted: 0, refused_over_budget: 1 });
    expect(stats.reservedBytes).toBeLessThan(512 * MIB);
  });
});

describe("peers without manners", () => {
  test("F37 an offer of too many records ends the session, and reserves nothing", async () => {
    const vault = await openVault();
    const raw = await RawLane.open(vault);
    raw.offer(Array(KEYS_MAX + 1).fill(makeRecord(0)));
    await raw.offered();
    expect([raw.isOver, raw.wanted]).toEqual([true, null]);
    expect(vault.stats().reservedBytes).toBe(0);
  });

  test("gaps, duplicates and changed lengths spoil their item only; a client that cannot send its offer says so", async () => {
    const records = makeRecords(5);
    const [b0, b1, b2, b3, b4] = records.map(({ record }) => record) as [
      Buffer,
      Buffer,
      Buffer,
      Buffer,
      Buffer,
    ];
    const raw = await RawLane.open(await openVault());
    raw.offer(records);
    await raw.offered();
    raw.chunk(0, b0, 0, 100);
    raw.chunk(0, b0, 200);
    raw.chunk(1, b1, 0, 100);
    raw.chunk(1, b1, 0, 100);
    raw.chunk(2, b2.subarray(0, 5));
    raw.chunk(3, b3);
    raw.chunk(3, b3);
    raw.chunk(4, b4.subarray(0, 1));
    const expected = [BAD_RECORD, BAD_RECORD, BAD_RECORD, ACCEPTED, INCOMPLETE];
    expect(await raw.settled(5)).toEqual(new Map(expected.map((status, item) => [item, status])));
  });

  test.each(["a cancelled offer", "a lost connection"])(
    "%s frees its reservations",
    async (how) => {
      const vault = await openVault();
      const client = openClient(vault);
      const raw = await RawLane.open(vault);
      const records = makeRecords(4, { payloadBytes: MIB });
      raw.offer(records);
      await raw.offered();
      raw.chunk(0, records[0]!.record, 0, 1000);
      expect((await client.stats(SOON_MS)).reservedBytes).toBeGreaterThan(4 * MIB);
      if (how === "a cancelled offer") raw.cancel();
      else raw.socket.resetAndDestroy();
      await until(async () => (await client.stats(SOON_MS)).reservedBytes === 0, "free room");
      expect(await client.put(NAMESPACE, records, SOON_MS)).toEqual(records.map(() => ACCEPTED));
    },
  );
});
