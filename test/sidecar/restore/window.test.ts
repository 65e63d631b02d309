// Owns the proof of receiving: a block is placed when every shard is verified, and no slot is written after the end.
import { beforeEach, expect, test } from "vitest";
import { Arena } from "../../../src/arena/arena.ts";
import { ItemStatus } from "../../../src/block.ts";
import { registerGeometry } from "../../../src/native.ts";
import { Window } from "../../../src/sidecar/restore/window.ts";
import { blockKey, Shelf } from "../../../src/sidecar/slots/shelf.ts";
import type { Block } from "../../../src/sidecar/slots/shelf.ts";
import { inboxStatus, readSlot, writeSlot } from "../../support/native.ts";
import { digest, flipped, makeRecord, NAMESPACE, noise } from "../../support/records.ts";
import { closeAfterTest, until } from "../../support/vaults.ts";

const PAGE = 4096;
const BEFORE = Buffer.alloc(PAGE, 0xee);

let arena: Arena;
let shelf: Shelf;
let window: Window;
let blocks: Block[];
let bad: Buffer[];

/** A window over two blocks of two shards each: items 0, 1 and 2, 3. */
beforeEach(async () => {
  arena = closeAfterTest(new Arena({ slotBytes: PAGE, slotCount: 8, dir: null }));
  await until(() => arena.status().touchedSlots === 8, "a touched arena");
  for (let slot = 0; slot < 8; slot += 1) writeSlot(arena.id, slot, BEFORE);
  shelf = new Shelf({ arena, shards: 2, saveSlots: 0, onUnwanted() {}, onRoom() {} });
  shelf.setTouched(8);
  const user = { onBlock(): void {} };
  blocks = [0, 1].map((index) => {
    const hash = digest(`block ${index}`);
    const place = { parent: Buffer.alloc(32), first: index, tenant: 0, owners: new Uint8Array(0) };
    const kv = { recordClass: "kv" as const, group: 0 };
    const name = { namespace: NAMESPACE, ...kv, hashes: hash, ...place };
    const block = shelf.use(blockKey(NAMESPACE, 0, hash), name, 0, user);
    expect(shelf.startFetch([block])).toBe(1);
    return block;
  });
  const geometry = registerGeometry({
    group: 0,
    recordClass: 1,
    layout: 1,
    dtype: 0,
    tokens: 16,
    layers: 1,
    heads: 0,
    dimK: 0,
    dimV: 0,
    layerBytes: PAGE,
    keyOffset: 0,
    valueOffset: 0,
    headStride: 0,
    tokenStride: 0,
  });
  bad = [];
  window = new Window({
    blocks,
    shards: 2,
    arena: arena.id,
    fidelity: 0,
    shelf,
    geometryOf: () => geometry,
    onBytes: () => {},
    onBadRecord: (key) => bad.push(key),
  });
});

function recordOf(item: number): Buffer {
  return makeRecord(item >> 1, { payloadBytes: PAGE, shard: item % 2 }).record;
}

function keyOfItem(item: number): Buffer {
  return makeRecord(item >> 1, { payloadBytes: PAGE, shard: item % 2 }).key;
}

function give(item: number, record: Buffer = recordOf(item)): void {
  window.piece(item, 0, record.length, record);
}

function pageOf(block: Block, shard: number): Buffer {
  return readSlot(arena.id, block.leases[shard * 2]!);
}

test("a block is placed when its last shard is there, in any order and any pieces", () => {
  give(1);
  expect(blocks[0]!.state).toBe("fetching");
  const record = recordOf(0);
  window.piece(0, 0, record.length, record.subarray(0, 100));
  give(3);
  window.piece(0, 100, record.length, record.subarray(100));
  expect(blocks[0]!.state).toBe("placed");
  expect(pageOf(blocks[0]!, 0).equals(noise(PAGE, 0))).toBe(true);
  expect(pageOf(blocks[0]!, 1).equals(recordOf(1).subarray(192))).toBe(true);
  expect(blocks[1]!.state).toBe("fetching");
  expect(inboxStatus().records).toBe(0);
});

test("a bad shard fails its block once, whatever comes after it", () => {
  const slots = [...blocks[0]!.leases].filter((_, at) => at % 2 === 0);
  const record = flipped(recordOf(0), -1);
  give(0, record);
  expect(blocks[0]).toMatchObject({ state: "gone", failure: "bad_record" });
  give(1);
  give(0);
  expect(bad).toHaveLength(1);
  for (const slot of slots) expect(readSlot(arena.id, slot).equals(BEFORE)).toBe(true);
  give(2);
  give(3);
  expect(blocks[1]!.state).toBe("placed");
});

test.each([
  ["of another block", recordOf(2)],
  ["of another shard", recordOf(1)],
  ["of another namespace", makeRecord(0, { payloadBytes: PAGE, namespace: digest("x") }).record],
  ["of another length", makeRecord(0, { payloadBytes: PAGE / 2 }).record],
  ["that is no record", noise(192 + PAGE, 5)],
])("a record %s is refused", (_name, record) => {
  give(0, record);
  expect(blocks[0]).toMatchObject({ state: "gone", failure: "bad_record" });
  expect(bad).toHaveLength(1);
});

test("after the end nothing is written, and everything is given back", () => {
  const record = recordOf(0);
  window.piece(0, 0, record.length, record.subarray(0, 1000));
  give(3);
  const slots = blocks.flatMap(({ leases }) => [leases[0]!, leases[2]!]);
  const written = slots.map((slot) => readSlot(arena.id, slot));
  window.end("vault_down");
  expect(blocks.map(({ failure }) => failure)).toEqual(["vault_down", "vault_down"]);
  expect(window.signal.aborted).toBe(true);
  expect(inboxStatus().records).toBe(0);
  expect(arena.status().freeSlots).toBe(8);
  // The same slots for somebody else: a late piece must not reach them.
  arena.lease(7, 8);
  window.piece(0, 1000, record.length, record.subarray(1000));
  give(1);
  give(2);
  window.missing(1, ItemStatus.MISSING);
  for (const [at, slot] of slots.entries()) {
    expect(readSlot(arena.id, slot).equals(written[at]!)).toBe(true);
  }
  expect(bad).toHaveLength(0);
});

test("what lanes bring is placed, what they could not is left to pieces", () => {
  const plan = window.landingPlan();
  expect(plan.keys.equals(Buffer.concat([0, 1, 2, 3].map(keyOfItem)))).toBe(true);
  expect([...plan.leases]).toEqual([...blocks[0]!.leases, ...blocks[1]!.leases]);
  const { ACCEPTED, INCOMPLETE } = ItemStatus;
  const statuses = Uint8Array.of(ACCEPTED, ACCEPTED, INCOMPLETE, ACCEPTED);
  expect(window.settle({ statuses, bytes: 1, reason: null })).toEqual([2]);
  expect(blocks.map(({ state }) => state)).toEqual(["placed", "fetching"]);
  give(2);
  expect(blocks[1]!.state).toBe("placed");
});

test("a record that lanes refused fails its block and is reported; nothing is asked for again", () => {
  const { ACCEPTED, BAD_RECORD, INCOMPLETE, MISSING } = ItemStatus;
  const statuses = Uint8Array.of(INCOMPLETE, BAD_RECORD, ACCEPTED, MISSING);
  expect(window.settle({ statuses, bytes: 1, reason: "torn" })).toEqual([]);
  expect(blocks.map(({ failure }) => failure)).toEqual(["bad_record", "end_of_hit"]);
  expect(bad.map((key) => key.toString("hex"))).toEqual([keyOfItem(1).toString("hex")]);
  expect(arena.status().freeSlots).toBe(8);
});

test("what the vault has lost ends the hit, what broke off is the vault's failure", () => {
  window.missing(0, ItemStatus.MISSING);
  window.missing(2, ItemStatus.INCOMPLETE);
  expect(blocks.map(({ failure }) => failure)).toEqual(["end_of_hit", "vault_down"]);
});

test("it is given up when nobody wants what is left, not before", () => {
  give(0);
  give(1);
  window.dropUnwanted();
  expect(window.signal.aborted).toBe(false);
  blocks[1]!.user = null;
  window.dropUnwanted();
  expect(window.signal.aborted).toBe(true);
  expect(blocks.map(({ state }) => state)).toEqual(["placed", "gone"]);
});
