// Owns the proof of the cache's book-keeping: sharing, eviction order, and the saves' share.
import { beforeEach, expect, test } from "vitest";
import { Arena, SIDECAR_OWNER } from "../../../src/arena/arena.ts";
import { blockKey } from "../../../src/base/key-text.ts";
import { BlockCache } from "../../../src/sidecar/slots/block-cache.ts";
import type { Block } from "../../../src/sidecar/slots/block.ts";
import { AT_FIRST, digest } from "../../support/records.ts";
import { closeAfterTest, until } from "../../support/vaults.ts";

const NAMESPACE = digest("namespace");
const SLOTS = 20;
const SAVES = 4;

class User {
  changes = 0;
  onBlock(): void {
    this.changes += 1;
  }
}

let arena: Arena;
let cache: BlockCache;
let unwanted: Block[];
let user: User;

beforeEach(async () => {
  arena = closeAfterTest(new Arena({ slotBytes: 4096, slotCount: SLOTS, dir: null }));
  await until(() => arena.status().touchedSlots === SLOTS, "a touched arena");
  unwanted = [];
  user = new User();
  const onUnwanted = (block: Block): void => void unwanted.push(block);
  cache = new BlockCache({ arena, shards: 2, saveSlots: SAVES, onUnwanted, onRoom: () => {} });
  cache.setTouched(SLOTS);
});

function use(index: number, by: User = user, cutFrom?: Buffer): Block {
  const hash = digest(`block ${index}`);
  const place = { parent: Buffer.alloc(32), first: index, tenant: 0, ...AT_FIRST };
  const kv = { recordClass: "kv" as const, group: 0 };
  const cut = cutFrom === undefined ? {} : { cutFrom };
  const name = { namespace: NAMESPACE, ...kv, hashes: hash, ...place, ...cut };
  return cache.use(blockKey(NAMESPACE, 0, hash), name, 0, by);
}

function fetchAndPlace(index: number): Block {
  const block = use(index);
  expect(cache.startFetch([block])).toBe(1);
  cache.place(block);
  return block;
}

test("restores get what the saves do not own, in whole blocks", () => {
  expect(cache.capacity).toBe((SLOTS - SAVES) / 2);
  for (let index = 0; index < 8; index += 1) fetchAndPlace(index);
  expect(cache.room).toBe(0);
  expect(cache.startFetch([use(8)])).toBe(0);
  expect(arena.lease(SIDECAR_OWNER, 99)).toHaveLength(SAVES * 2);
});

test("a block is one object for all its users, and stays until the last one leaves", () => {
  const block = fetchAndPlace(1);
  const other = new User();
  expect(use(1, other)).toBe(block);
  cache.leave(block, user);
  expect(cache.retained).toBe(0);
  cache.leave(block, user);
  expect(cache.retained).toBe(0);
  cache.leave(block, other);
  expect(cache.retained).toBe(1);
  expect(cache.isPlaced(block.key)).toBe(true);
});

test("a user that leaves as it is told keeps no other user from being told", () => {
  const first = new User();
  const block = use(1, first);
  use(1);
  first.onBlock = () => cache.leave(block, first);
  cache.startFetch([block]);
  cache.place(block);
  expect(user.changes).toBe(1);
});

test("a block cut from others' records is offered to no vault, and goes with their name", () => {
  const longer = digest("name of longer blocks");
  const blocks = [use(1), use(2, user, longer)];
  expect(cache.startFetch(blocks)).toBe(2);
  for (const block of blocks) cache.place(block);
  expect([...cache.copies("kv", NAMESPACE)]).toEqual([blocks[0]]);
  expect(cache.flush("kv", (namespace) => namespace.equals(longer))).toEqual([blocks[1]]);
});

test("idle blocks give way in the order they were left, those in use never", () => {
  const blocks = Array.from({ length: 8 }, (_, index) => fetchAndPlace(index));
  for (const index of [5, 3, 6]) cache.leave(blocks[index]!, user);
  fetchAndPlace(100);
  expect(blocks.map(({ state }) => state === "gone").indexOf(true)).toBe(5);
  fetchAndPlace(101);
  expect(blocks[3]!.state).toBe("gone");
  // Used again, so no longer idle.
  use(6);
  expect(cache.startFetch([use(102)])).toBe(0);
  expect(blocks[6]!.state).toBe("placed");
});

test("a block that fails gives its slots back and tells its users why", () => {
  const free = arena.status().freeSlots;
  const block = use(1);
  cache.startFetch([block]);
  expect(arena.status().freeSlots).toBe(free - 2);
  cache.fail(block, "bad_record");
  expect(arena.status().freeSlots).toBe(free);
  expect(block).toMatchObject({ state: "gone", failure: "bad_record" });
  expect(user.changes).toBe(1);
  expect(use(1)).not.toBe(block);
});

test("a wanted block without a user goes at once, a fetching one is reported", () => {
  const wanted = use(1);
  cache.leave(wanted, user);
  expect(wanted.state).toBe("gone");
  const fetching = use(2);
  cache.startFetch([fetching]);
  cache.leave(fetching, user);
  expect(unwanted).toEqual([fetching]);
  cache.place(fetching);
  expect(cache.retained).toBe(1);
});

test("the same hash in another namespace or group is another block", () => {
  const hash = digest("block");
  const keys = [
    blockKey(NAMESPACE, 0, hash),
    blockKey(NAMESPACE, 1, hash),
    blockKey(digest("other"), 0, hash),
    blockKey(NAMESPACE, 0, NAMESPACE),
  ];
  expect(new Set(keys).size).toBe(4);
});

test("a block that is lent keeps its slots and its turn, also through a flush, and goes when it is taken back", () => {
  const blocks = Array.from({ length: 8 }, (_, index) => fetchAndPlace(index));
  for (const block of blocks) cache.leave(block, user);
  const [first, second, third] = blocks as [Block, Block, Block];
  expect(cache.lend(first)).toBe(true);
  expect(cache.lend(first)).toBe(false);
  expect(cache.lend(third)).toBe(true);
  expect(cache.room).toBe(6);
  fetchAndPlace(100);
  expect([first.state, second.state]).toEqual(["placed", "gone"]);
  cache.takeBack(first);
  fetchAndPlace(101);
  expect(first.state).toBe("gone");
  cache.flush("kv", () => true);
  expect([third.state, cache.isPlaced(third.key)]).toEqual(["placed", false]);
  const leased = arena.status().leasedSlots;
  cache.takeBack(third);
  expect(third.state).toBe("gone");
  expect(arena.status().leasedSlots).toBe(leased - 2);
  expect(cache.lend(third)).toBe(false);
});

test("a block that is lent and used meanwhile goes with whoever lets go last", () => {
  const block = fetchAndPlace(1);
  cache.lend(block);
  cache.flush("kv", () => true);
  cache.leave(block, user);
  expect(block.state).toBe("placed");
  cache.takeBack(block);
  expect(block.state).toBe("gone");
  expect(arena.status().leasedSlots).toBe(0);
});
