// Owns the tests of the Store call: what a vault accepts, what it refuses, and that no reservation outlives its call.
import { status as GrpcStatus } from "@grpc/grpc-js";
import { describe, expect, test } from "vitest";
import { hasBit, ItemStatus } from "../../src/block.ts";
import { KEYS_MAX, STORE_CALL_BYTES_MAX } from "../../src/limits.ts";
import { pieceOf, RawStore } from "../support/raw-calls.ts";
import { flipped, keysOf, makeRecord, makeRecords, NAMESPACE } from "../support/records.ts";
import { openRelay } from "../support/tcp-relay.ts";
import { KeepingSink, MIB, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";

const { ACCEPTED, PRESENT, BAD_RECORD, WRONG_CLASS, WRONG_KEY, TOO_LARGE } = ItemStatus;
const { OVER_BUDGET, INCOMPLETE } = ItemStatus;

describe("a vault of both classes", () => {
  test("takes and gives back either, and no third", async () => {
    const vault = await openVault({ recordClass: "both" });
    for (const name of ["kv", "ssm"] as const) {
      const client = openClient(vault, name);
      const records = makeRecords(3, { recordClass: name, group: name === "kv" ? 0 : 1 });
      expect(await client.store(NAMESPACE, name, records, SOON_MS)).toEqual(
        Array(3).fill(ACCEPTED),
      );
      const sink = new KeepingSink();
      const group = name === "kv" ? 0 : 1;
      const runs = [{ recordClass: name, group, keys: keysOf(records) }];
      await client.fetch(NAMESPACE, runs, sink, { deadlineMs: SOON_MS });
      expect([...sink.records.values()]).toEqual(records.map(({ record }) => record));
    }
    const raw = new RawStore(vault);
    raw.offer(makeRecords(1, { group: 7 }), { recordClass: 3 });
    expect(await raw.failure()).toMatchObject({
      details: expect.stringContaining("record class 3: expected 1 (kv) or 2 (ssm)") as string,
    });
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
    const statuses = await client.store(NAMESPACE, "kv", records, SOON_MS);
    expect(statuses).toEqual(sizes.map(() => ACCEPTED));

    const sink = new KeepingSink();
    const runs = [{ recordClass: "kv" as const, group: 0, keys: keysOf(records) }];
    await client.fetch(NAMESPACE, runs, sink, { deadlineMs: SOON_MS });
    for (const [item, { record }] of records.entries()) {
      expect(sink.records.get(item)?.equals(record), `item ${item}`).toBe(true);
    }
    expect(sink.order).toEqual(sizes.map((_, item) => item));
  });

  test("the second offer is PRESENT and sends nothing", async () => {
    const vault = await openVault();
    const client = openClient(vault);
    const records = makeRecords(3);
    await client.store(NAMESPACE, "kv", records.slice(0, 2), SOON_MS);
    const storedBytes = vault.counters.get("stored_bytes");
    const statuses = await client.store(NAMESPACE, "kv", records, SOON_MS);
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
      clients.map((client) => client.store(NAMESPACE, "kv", records, SOON_MS)),
    );
    for (const item of records.keys()) {
      expect(new Set(statuses.map((all) => all[item]))).toEqual(new Set([ACCEPTED, PRESENT]));
    }
    expect(vault.counters.get("stored")).toBe(records.length);
  });

  test("a key on its way is PRESENT for others and cannot be looked up", async () => {
    const vault = await openVault();
    const [one] = makeRecords(1);
    const slow = new RawStore(vault);
    slow.offer([one!]);
    await slow.wanted();
    const client = openClient(vault);
    expect(await client.store(NAMESPACE, "kv", [one!], SOON_MS)).toEqual([PRESENT]);
    expect(hasBit(await client.lookup(NAMESPACE, one!.key, SOON_MS), 0)).toBe(false);
    slow.pieces(pieceOf(0, one!.record));
    expect(await slow.finish()).toEqual(new Map([[0, ACCEPTED]]));
    expect(hasBit(await client.lookup(NAMESPACE, one!.key, SOON_MS), 0)).toBe(true);
  });

  test("F17 a budget that is full evicts old records and stays below its limit", async () => {
    const vault = await openVault({ maxBytes: 16 * MIB });
    const client = openClient(vault);
    const records = makeRecords(30, { payloadBytes: MIB });
    for (let at = 0; at < records.length; at += 5) {
      const statuses = await client.store(NAMESPACE, "kv", records.slice(at, at + 5), SOON_MS);
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
    const statuses = await client.store(NAMESPACE, "kv", batch, SOON_MS);
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
    expect(await client.store(NAMESPACE, "kv", [record!], SOON_MS)).toEqual([WRONG_KEY]);
  });

  test("the other class is refused by name, whoever asks", async () => {
    const client = openClient(await openVault());
    const records = makeRecords(1, { recordClass: "ssm" });
    await expect(client.store(NAMESPACE, "ssm", records, SOON_MS)).rejects.toMatchObject({
      code: "VAULT_REFUSED",
      message: expect.stringMatching(/holds kv records, asked for ssm; .*ssm_cold/) as string,
    });
  });

  test("a record above the limit is TOO_LARGE, by the client and by the vault", async () => {
    const vault = await openVault({ maxBytes: 16 * MIB });
    const small = makeRecord(0);
    const large = makeRecord(1, { payloadBytes: 17 * MIB });
    const statuses = await openClient(vault).store(NAMESPACE, "kv", [large, small], SOON_MS);
    expect(statuses).toEqual([TOO_LARGE, ACCEPTED]);

    const raw = new RawStore(vault);
    raw.offer([large]);
    await raw.wanted();
    expect(raw.replies[0]?.wanted?.statuses).toEqual([TOO_LARGE]);
    await raw.finish();
  });

  test("over budget while others hold the room, accepted once they let go", async () => {
    const vault = await openVault({ maxBytes: 4 * MIB });
    const client = openClient(vault);
    const holder = new RawStore(vault);
    holder.offer([makeRecord(0, { payloadBytes: 3 * MIB })]);
    await holder.wanted();
    const late = makeRecord(1, { payloadBytes: 2 * MIB });
    expect(await client.store(NAMESPACE, "kv", [late], SOON_MS)).toEqual([OVER_BUDGET]);
    holder.call.cancel();
    await until(async () => (await client.stats(SOON_MS)).reservedBytes === 0, "the reservation");
    expect(await client.store(NAMESPACE, "kv", [late], SOON_MS)).toEqual([ACCEPTED]);
  });

  test("records under way may hold half the vault, all together; more is refused and pushes nothing out", async () => {
    const vault = await openVault({ maxBytes: 1024 * MIB });
    const client = openClient(vault);
    const records = makeRecords(6);
    await client.store(NAMESPACE, "kv", records.slice(0, 2), SOON_MS);
    for (const holder of [2, 3]) {
      const raw = new RawStore(vault);
      raw.offer([records[holder]!], { recordBytes: [180 * MIB] });
      await raw.wanted();
    }
    const late = new RawStore(vault);
    late.offer(records.slice(4), { recordBytes: [180 * MIB, 70 * MIB] });
    await late.wanted();
    expect(late.replies[0]?.wanted).toMatchObject({
      wanted: Buffer.from([0b10]),
      statuses: [OVER_BUDGET, ItemStatus.UNSPECIFIED],
    });
    const stats = await client.stats(SOON_MS);
    expect(stats.counters).toMatchObject({ evicted: 0, refused_over_budget: 1 });
    expect(stats.reservedBytes).toBeLessThan(512 * MIB);
  });

  test.each([
    ["more keys than allowed", { keys: Buffer.alloc((KEYS_MAX + 1) * 36) }, String(KEYS_MAX)],
    ["half a key", { keys: Buffer.alloc(35) }, "35 bytes of keys"],
    ["a short namespace", { namespace: Buffer.alloc(31) }, "31 bytes"],
    ["a missing length", { recordBytes: [] }, "one per key"],
    ["no class", { recordClass: 0 }, "record class 0"],
  ])("an offer with %s is refused with the limit in the text", async (_name, change, text) => {
    const raw = new RawStore(await openVault());
    raw.offer(makeRecords(1), change);
    expect((await raw.failure()).details).toContain(text);
  });

  test("F37 more record bytes than one call may offer are refused before anything is reserved", async () => {
    const vault = await openVault({ maxBytes: STORE_CALL_BYTES_MAX * 4 });
    const raw = new RawStore(vault);
    const records = makeRecords(3);
    raw.offer(records, { recordBytes: records.map(() => STORE_CALL_BYTES_MAX / 2) });
    const { code, details } = await raw.failure();
    expect(code).toBe(GrpcStatus.RESOURCE_EXHAUSTED);
    expect(details).toContain(String(STORE_CALL_BYTES_MAX));
    expect((await openClient(vault).stats(SOON_MS)).reservedBytes).toBe(0);
  });
});

describe("peers without manners", () => {
  test.each([
    ["a chunk before the offer", false, [pieceOf(0, makeRecord(0).record)], "before the offer"],
    ["an item that was not offered", true, [pieceOf(7, makeRecord(0).record)], "item 7"],
  ])("%s ends the call", async (_name, withOffer, pieces, text) => {
    const vault = await openVault();
    const raw = new RawStore(vault);
    if (withOffer) raw.offer(makeRecords(1));
    raw.pieces(...pieces);
    const { code, details } = await raw.failure();
    expect(code).toBe(GrpcStatus.INVALID_ARGUMENT);
    expect(details).toContain(text);
    expect((await openClient(vault).stats(SOON_MS)).reservedBytes).toBe(0);
  });

  test("a second offer ends the call and frees the first one's room", async () => {
    const vault = await openVault();
    const raw = new RawStore(vault);
    raw.offer(makeRecords(1));
    raw.offer(makeRecords(1));
    expect((await raw.failure()).details).toContain("second offer");
    expect((await openClient(vault).stats(SOON_MS)).reservedBytes).toBe(0);
  });

  test("gaps, duplicates, overruns and changed lengths spoil their item only; what is cut short is INCOMPLETE", async () => {
    const records = makeRecords(7);
    const bytes = records.map(({ record }) => record);
    const raw = new RawStore(await openVault());
    raw.offer(records);
    await raw.wanted();
    const [b0, b1, b2, b3, b4, b5] = bytes as [Buffer, Buffer, Buffer, Buffer, Buffer, Buffer];
    raw.pieces(pieceOf(0, b0, 0, 100), pieceOf(0, b0, 200));
    raw.pieces(pieceOf(1, b1, 0, 100), pieceOf(1, b1, 0, 100));
    raw.pieces({ ...pieceOf(2, b2), data: Buffer.concat([b2, b2]) });
    raw.pieces({ ...pieceOf(3, b3), recordBytes: 5 });
    raw.pieces(pieceOf(4, b4), pieceOf(4, b4));
    raw.pieces(pieceOf(5, b5, 0, 100), { ...pieceOf(5, b5, 100), status: INCOMPLETE });
    const expected = [
      BAD_RECORD,
      BAD_RECORD,
      BAD_RECORD,
      BAD_RECORD,
      ACCEPTED,
      INCOMPLETE,
      INCOMPLETE,
    ];
    expect(await raw.finish()).toEqual(new Map(expected.map((status, item) => [item, status])));
  });

  test.each(["a cancelled call", "a lost connection", "a passed deadline"])(
    "%s frees its reservations",
    async (how) => {
      const vault = await openVault();
      const client = openClient(vault);
      const relay = await openRelay(vault);
      const raw = new RawStore(relay, how === "a passed deadline" ? 1_500 : SOON_MS);
      const records = makeRecords(4, { payloadBytes: MIB });
      raw.offer(records);
      await raw.wanted();
      raw.pieces(pieceOf(0, records[0]!.record, 0, 1000));
      expect((await client.stats(SOON_MS)).reservedBytes).toBeGreaterThan(4 * MIB);
      if (how === "a cancelled call") raw.call.cancel();
      if (how === "a lost connection") relay.cut();
      await until(async () => (await client.stats(SOON_MS)).reservedBytes === 0, "free room");
      // gRPC shows a cancelled stream as cancelled or as ended, whichever comes first; both are counted.
      const { counters } = vault;
      expect(counters.get("stores_ended_early") + counters.get("refused_incomplete")).not.toBe(0);
      expect(await client.store(NAMESPACE, "kv", records, SOON_MS)).toEqual(
        records.map(() => ACCEPTED),
      );
    },
  );
});
