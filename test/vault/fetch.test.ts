// Owns the tests of the Fetch call: need order, gaps, chunks, cancelling, and that pins end with the call.
import { afterEach, describe, expect, test, vi } from "vitest";
import { ItemStatus, keyAt } from "../../src/block.ts";
import type { VaultClient } from "../../src/client/vault-client.ts";
import { CHUNK_BYTES_MIN } from "../../src/limits.ts";
import type * as Native from "../../src/native.ts";
import type { FetchChunk } from "../../src/wire/messages.ts";
import { firstMessage, rawFetch } from "../support/raw-calls.ts";
import { digest, keysOf, makeRecord, makeRecords, NAMESPACE } from "../support/records.ts";
import type { TestRecord } from "../support/records.ts";
import { KeepingSink, MIB, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";
import type { TestVault } from "../support/vaults.ts";

/** Pins that are held now, counted where the vault takes and gives them. */
const pins = vi.hoisted(() => ({ held: new Set<number>(), taken: 0 }));
vi.mock("../../src/native.ts", async (importOriginal) => {
  const native = await importOriginal<typeof Native>();
  return {
    ...native,
    storePin: (...args: Parameters<typeof native.storePin>) => {
      const pairs = native.storePin(...args);
      for (const [at, value] of pairs.entries()) {
        if (at % 2 === 1 || value === 0) continue;
        pins.held.add(value);
        pins.taken += 1;
      }
      return pairs;
    },
    unpin: (pin: number) => {
      pins.held.delete(pin);
      native.unpin(pin);
    },
  };
});
afterEach(() => expect(pins.held.size, "pins that nobody let go").toBe(0));

async function openFilled(
  records: readonly TestRecord[],
  maxBytes?: number,
): Promise<{ vault: TestVault; client: VaultClient }> {
  const vault = await openVault(maxBytes === undefined ? {} : { maxBytes });
  const client = openClient(vault);
  const statuses = await client.store(NAMESPACE, "kv", records, SOON_MS);
  expect(new Set(statuses)).toEqual(new Set([ItemStatus.ACCEPTED]));
  return { vault, client };
}

const GROUP_0 = { recordClass: "kv", group: 0 } as const;

describe("a fetch", () => {
  test("answers in need order over all segments, with MISSING where nothing is held", async () => {
    const first = makeRecords(10, { group: 3, payloadBytes: 70_000 });
    const second = makeRecords(4, { group: 1, payloadBytes: 300 });
    const { vault, client } = await openFilled([...second, ...first]);
    const absent = makeRecord(77, { group: 3 });
    const keys = Buffer.concat([keysOf(first.slice(0, 5)), absent.key, keysOf(first.slice(5))]);
    const sink = new KeepingSink();
    const runs = [
      { recordClass: "kv" as const, group: 3, keys },
      { recordClass: "kv" as const, group: 1, keys: keysOf(second) },
    ];
    await client.fetch(NAMESPACE, runs, sink, { deadlineMs: SOON_MS });
    expect(sink.order).toEqual(Array.from({ length: 15 }, (_, item) => item));
    expect(sink.missed).toEqual(new Map([[5, ItemStatus.MISSING]]));
    const expected = [...first.slice(0, 5), null, ...first.slice(5), ...second];
    for (const [item, record] of expected.entries()) {
      if (record !== null) expect(sink.records.get(item)?.equals(record.record)).toBe(true);
    }
    expect(vault.counters.get("fetched")).toBe(14);
    expect(vault.counters.get("fetch_missing")).toBe(1);
    expect(pins.taken).toBeGreaterThanOrEqual(14);
  });

  test("an empty plan and a plan of unknown keys end well", async () => {
    const { client } = await openFilled(makeRecords(1));
    const sink = new KeepingSink();
    await client.fetch(NAMESPACE, [], sink, { deadlineMs: SOON_MS });
    await client.fetch(digest("nobody's"), [{ ...GROUP_0, keys: makeRecord(0).key }], sink, {
      deadlineMs: SOON_MS,
    });
    expect(sink.missed).toEqual(new Map([[0, ItemStatus.MISSING]]));
  });

  test("the same key twice is sent twice", async () => {
    const [record] = makeRecords(1);
    const { client } = await openFilled([record!]);
    const sink = new KeepingSink();
    const keys = Buffer.concat([record!.key, record!.key]);
    await client.fetch(NAMESPACE, [{ ...GROUP_0, keys }], sink, { deadlineMs: SOON_MS });
    expect(sink.records.size).toBe(2);
  });

  test("small records share a chunk and a large one spans several, of the size asked for", async () => {
    const records = [
      ...makeRecords(50, { payloadBytes: 100 }),
      makeRecord(50, { payloadBytes: CHUNK_BYTES_MIN * 3 }),
    ];
    const { vault } = await openFilled(records);
    const segments = [{ recordClass: 1 as const, group: 0, keys: keysOf(records) }];
    const chunks: FetchChunk[] = [];
    for await (const message of rawFetch(vault, { segments, chunkBytes: 1 })) {
      chunks.push(message as FetchChunk);
    }
    const sizes = chunks.map(({ chunk }) =>
      (chunk?.pieces ?? []).reduce((sum, piece) => sum + piece.data.length, 0),
    );
    expect(chunks[0]?.chunk?.pieces.length).toBe(51);
    expect(Math.max(...sizes)).toBeLessThanOrEqual(CHUNK_BYTES_MIN);
    expect(chunks).toHaveLength(4);
  });

  test("a cancelled fetch stops the vault within a few chunks and lets its pins go", async () => {
    const records = makeRecords(40, { payloadBytes: MIB });
    const { vault, client } = await openFilled(records);
    const abort = new AbortController();
    const sink = new KeepingSink();
    let calls = 0;
    const counting = {
      piece: (...args: Parameters<KeepingSink["piece"]>) => {
        calls += 1;
        sink.piece(...args);
        if (sink.records.size === 2) abort.abort();
      },
      missing: () => {
        calls += 1;
      },
    };
    const runs = [{ ...GROUP_0, keys: keysOf(records) }];
    const fetching = client.fetch(NAMESPACE, runs, counting, {
      deadlineMs: SOON_MS,
      signal: abort.signal,
    });
    await expect(fetching).rejects.toMatchObject({ code: "CANCELLED" });
    const callsAtEnd = calls;
    await until(() => vault.counters.get("fetches_ended_early") === 1, "the vault to stop");
    expect(pins.held.size).toBe(0);
    // A flow-control window and a few chunks may be under way; far from all 40 MiB.
    expect(vault.counters.get("fetched")).toBeLessThan(20);
    expect(calls).toBe(callsAtEnd);
    expect(client.state).toBe("up");
  });

  test("a sink that cancels hears nothing more, not even the rest of the chunk", async () => {
    const records = makeRecords(100);
    const { client } = await openFilled(records);
    const abort = new AbortController();
    const heard: number[] = [];
    const sink = {
      piece: (item: number) => {
        heard.push(item);
        if (item === 3) abort.abort();
      },
      missing: (item: number) => void heard.push(item),
    };
    const runs = [{ ...GROUP_0, keys: keysOf(records) }];
    const options = { deadlineMs: SOON_MS, signal: abort.signal };
    const fetching = client.fetch(NAMESPACE, runs, sink, options);
    await expect(fetching).rejects.toMatchObject({ code: "CANCELLED" });
    expect(heard).toEqual([0, 1, 2, 3]);
  });

  test("a sink that throws ends the fetch with its error and hears nothing more", async () => {
    const records = makeRecords(40, { payloadBytes: MIB });
    const { vault, client } = await openFilled(records);
    let calls = 0;
    const sink = {
      piece: () => {
        calls += 1;
        throw new Error("no slot");
      },
      missing: () => {
        calls += 1;
      },
    };
    const runs = [{ ...GROUP_0, keys: keysOf(records) }];
    const fetching = client.fetch(NAMESPACE, runs, sink, { deadlineMs: SOON_MS });
    await expect(fetching).rejects.toThrow("no slot");
    await until(() => vault.counters.get("fetches_ended_early") === 1, "the vault to stop");
    expect(calls).toBe(1);
    expect(client.state).toBe("up");
  });

  test("F30 records stay whole while others push them out", async () => {
    // More than a client's flow-control window, so that the vault cannot send all at once.
    const records = makeRecords(40, { payloadBytes: MIB });
    const { vault, client } = await openFilled(records, 48 * MIB);
    const reader = rawFetch(vault, {
      segments: [{ recordClass: 1, group: 0, keys: keysOf(records) }],
      chunkBytes: CHUNK_BYTES_MIN,
    });
    const first = await firstMessage(reader);
    for (let index = 100; index < 150; index += 1) {
      const pushing = [makeRecord(index, { payloadBytes: MIB })];
      await client.store(NAMESPACE, "kv", pushing, SOON_MS);
    }
    const stats = await client.stats(SOON_MS);
    expect(stats.usedBytes).toBeLessThanOrEqual(48 * MIB);
    expect(stats.counters["evicted"]).toBeGreaterThan(20);
    expect(pins.held.size).toBeGreaterThan(0);
    const got = records.map(() => [] as Buffer[]);
    const take = ({ chunk }: FetchChunk): void => {
      for (const piece of chunk?.pieces ?? []) {
        expect(piece.status).toBe(0);
        got[piece.item]?.push(piece.data);
      }
    };
    take(first);
    for await (const message of reader) take(message as FetchChunk);
    for (const [item, { record }] of records.entries()) {
      expect(Buffer.concat(got[item] ?? []).equals(record)).toBe(true);
    }
  });

  test.each([
    ["of the other class", { recordClass: 2 as const }, "holds kv records, asked for ssm"],
    ["that names another group than its keys", { group: 5 }, "belongs to group 0"],
    ["with half a key", { keys: Buffer.alloc(35) }, "35 bytes of keys"],
  ])("a segment %s is refused", async (_name, change, text) => {
    const vault = await openVault();
    const keys = keyAt(makeRecord(0).key, 0);
    const call = rawFetch(vault, { segments: [{ recordClass: 1, group: 0, keys, ...change }] });
    const failed = new Promise((resolve) => {
      call.on("error", resolve);
    });
    call.resume();
    expect(await failed).toMatchObject({ details: expect.stringContaining(text) as string });
  });
});
