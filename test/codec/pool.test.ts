// Owns the proof that blocks are encoded on a worker thread by descriptor, and that failures come back coded.
import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { Arena, SIDECAR_OWNER } from "../../src/arena/arena.ts";
import { toNamespace } from "../../src/base/block.ts";
import { ENCODE_NICE } from "../../src/base/limits/general.ts";
import type { ArenaId, GeometryId } from "../../src/base/native.ts";
import { outboxView } from "../../src/base/native.ts";
import { EncodePool } from "../../src/codec/pool.ts";
import type { EncodeTask } from "../../src/codec/task.ts";
import { outboxStatus, writeSlot, verifyRecord } from "../support/native.ts";
import { digest, noise } from "../support/records.ts";
import { registerOpaque } from "../support/slots.ts";
import { closeAfterTest, until } from "../support/vaults.ts";

const PAGE = 12_288;
/** In a thread's stat behind the name; the kernel's ABI fixes it. */
const NICE_FIELD = 16;
const NAMESPACE = toNamespace(digest("namespace"));

async function openTask(count: number): Promise<{ task: EncodeTask; pages: Buffer[] }> {
  const slotCount = count;
  const arena = closeAfterTest(new Arena({ slotBytes: PAGE, slotCount, dir: null }));
  await until(() => arena.status().touchedSlots === slotCount, "a touched arena");
  const leases = arena.lease(SIDECAR_OWNER, count);
  const pages = Array.from({ length: count }, (_, index) => noise(PAGE, index));
  const blocks = pages.map((page, index) => {
    const slot = leases[index * 2]!;
    writeSlot(arena.id, slot, page);
    return {
      slot,
      generation: leases[index * 2 + 1]!,
      hash: digest(`block ${index}`),
      parent: digest(`block ${index - 1}`),
      endTokens: 16 * (index + 1),
    };
  });
  const geometry = registerOpaque(PAGE / 3, { group: 3, layers: 3 });
  return {
    pages,
    task: {
      arena: arena.id,
      geometry,
      codec: 0,
      fidelity: 0,
      namespace: NAMESPACE,
      shard: 1,
      shardCount: 2,
      blocks,
    },
  };
}

test("a batch becomes records that verify and hold the blocks", async () => {
  const pool = closeAfterTest(new EncodePool(1));
  const { task, pages } = await openTask(5);
  const records = await pool.encode(task);
  expect(records).toHaveLength(5);
  for (const [index, record] of records.entries()) {
    const bytes = outboxView(record.id);
    expect(bytes.length).toBe(record.bytes);
    expect(verifyRecord(bytes)).toMatchObject({
      group: 3,
      shard: 1,
      shardCount: 2,
      endTokens: 16 * (index + 1),
      namespace: NAMESPACE,
      blockHash: digest(`block ${index}`),
      parentHash: digest(`block ${index - 1}`),
    });
    expect(bytes.subarray(192).equals(pages[index]!)).toBe(true);
    record.drop();
  }
  expect(outboxStatus().records).toBe(0);
});

test("deferred records are made together once one is asked for, and are the records that encoding makes", async () => {
  const pool = closeAfterTest(new EncodePool(1));
  const { task } = await openTask(4);
  const made = await pool.encode(task);
  const deferred = pool.defer(task);
  expect(deferred.map(({ bytes }) => bytes)).toEqual(made.map(({ bytes }) => bytes));
  expect(deferred.every(({ isDeferred }) => isDeferred)).toBe(true);
  expect(() => outboxView(deferred[3]!.id)).toThrow(/a deferred record/);
  for (const record of deferred) await record.make();
  expect(deferred.some(({ isDeferred }) => isDeferred)).toBe(false);
  for (const [index, record] of deferred.entries()) {
    expect(outboxView(record.id).equals(outboxView(made[index]!.id))).toBe(true);
  }
  for (const record of [...made, ...deferred]) record.drop();
  expect(outboxStatus().records).toBe(0);
});

test("a deferred record whose slot has gone stays one, and the others of its batch are made", async () => {
  const pool = closeAfterTest(new EncodePool(1));
  const { task } = await openTask(2);
  const [gone, there] = pool.defer({ ...task, blocks: stale(task) });
  for (const record of [gone!, there!]) await record.make();
  expect([gone!.isDeferred, there!.isDeferred]).toEqual([true, false]);
  expect(outboxView(there!.id).length).toBe(there!.bytes);
  for (const record of [gone!, there!]) record.drop();
});

/** Returns the blocks of a task, the first in a slot that has another holder by now. */
function stale({ blocks: [first, ...others] }: EncodeTask): EncodeTask["blocks"] {
  return [{ ...first!, generation: 77 }, ...others];
}

test.each<[string, Partial<EncodeTask> | "stale", string]>([
  ["an arena that is not there", { arena: 999_999 as ArenaId }, "UNKNOWN_ID"],
  ["a geometry that is not there", { geometry: 999_999 as GeometryId }, "UNKNOWN_ID"],
  ["a stale slot", "stale", "BAD_ARGUMENT"],
])("%s fails with its code, and leaves no record behind", async (_name, change, code) => {
  const pool = closeAfterTest(new EncodePool(1));
  const { task } = await openTask(1);
  const changed = change === "stale" ? { blocks: stale(task) } : change;
  await expect(pool.encode({ ...task, ...changed })).rejects.toMatchObject({ code });
  expect(outboxStatus().records).toBe(0);
});

test("many batches at once all come back", async () => {
  const pool = closeAfterTest(new EncodePool(2));
  const { task } = await openTask(4);
  const batches = await Promise.all(Array.from({ length: 40 }, () => pool.encode(task)));
  expect(batches.flat()).toHaveLength(160);
  for (const record of batches.flat()) record.drop();
  expect(outboxStatus().records).toBe(0);
});

test("encode threads give way to others, and only they", async () => {
  const before = nicenesses();
  const own = before.get(`${process.pid}`) ?? 0;
  const pool = closeAfterTest(new EncodePool(2));
  const { task } = await openTask(1);
  for (const record of await pool.encode(task)) record.drop();
  const given = (): [string, number][] =>
    [...nicenesses()].filter(([thread, nice]) => !before.has(thread) && nice === own + ENCODE_NICE);
  await until(() => given().length === 2, "two threads that give way");
  expect(nicenesses().get(`${process.pid}`)).toBe(own);
});

/** By thread of this process; those that end meanwhile are left out. */
function nicenesses(): Map<string, number> {
  const found = new Map<string, number>();
  for (const thread of readdirSync("/proc/self/task")) {
    try {
      const stat = readFileSync(`/proc/self/task/${thread}/stat`, "latin1");
      found.set(thread, Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[NICE_FIELD]));
    } catch {
      // It has ended since it was listed.
    }
  }
  return found;
}

// The built pool in a process of its own, because what this is about ends the process. Without the flag about one run in three dies.
test("a pool may be closed at any moment while its threads load", async () => {
  const built = new URL("../../dist/codec/pool.js", import.meta.url).href;
  const script = `
    const { EncodePool } = await import(${JSON.stringify(built)});
    const { setTimeout: pause } = await import("node:timers/promises");
    await Promise.all(Array.from({ length: 60 }, async (_, index) => {
      const pool = new EncodePool(1);
      await pause(40 + index * 25);
      await pool.close();
    }));
    console.log("closed");`;
  const args = ["--input-type=module", "-e", script];
  const { stdout } = await promisify(execFile)(process.execPath, args);
  expect(stdout).toBe("closed\n");
});
