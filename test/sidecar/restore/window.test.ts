// Owns the proof of a fetch's outcome: a block is placed when all shards are verified, and fails once with its reason.
import { beforeEach, expect, test } from "vitest";
import { Arena } from "../../../src/arena/arena.ts";
import { ItemStatus } from "../../../src/base/block.ts";
import { blockKey } from "../../../src/base/key-text.ts";
import type { BlockSource } from "../../../src/client/source.ts";
import { Window } from "../../../src/sidecar/restore/window.ts";
import { BlockCache } from "../../../src/sidecar/slots/block-cache.ts";
import type { Block } from "../../../src/sidecar/slots/block.ts";
import { AT_FIRST, digest, makeRecord, NAMESPACE } from "../../support/records.ts";
import { registerOpaque } from "../../support/slots.ts";
import { closeAfterTest, until } from "../../support/vaults.ts";

const PAGE = 4096;
const { ACCEPTED, BAD_RECORD, INCOMPLETE, MISSING, OVER_BUDGET } = ItemStatus;

let arena: Arena;
let cache: BlockCache;
let window: Window;
let blocks: Block[];
let bad: Buffer[];

/** Makes a window over two blocks of two shards each: items 0, 1 and 2, 3. */
beforeEach(async () => {
  arena = closeAfterTest(new Arena({ slotBytes: PAGE, slotCount: 8, dir: null }));
  await until(() => arena.status().touchedSlots === 8, "a touched arena");
  cache = new BlockCache({ arena, shards: 2, saveSlots: 0, onUnwanted() {}, onRoom() {} });
  cache.setTouched(8);
  const user = { onBlock(): void {} };
  blocks = [0, 1].map((index) => {
    const hash = digest(`block ${index}`);
    const place = { parent: Buffer.alloc(32), first: index, tenant: 0, ...AT_FIRST };
    const kv = { recordClass: "kv" as const, group: 0 };
    const name = { namespace: NAMESPACE, ...kv, hashes: hash, ...place };
    const block = cache.use(blockKey(NAMESPACE, 0, hash), name, 0, user);
    expect(cache.startFetch([block])).toBe(1);
    return block;
  });
  const geometry = registerOpaque(PAGE);
  bad = [];
  window = new Window({
    blocks,
    source: {} as BlockSource,
    shards: 2,
    arena: arena.id,
    fidelity: 0,
    cache,
    geometryOf: () => geometry,
    onBytes: () => {},
    mayFailOver: () => false,
    onBadRecord: (key) => bad.push(key),
  });
});

function keyOfItem(item: number): Buffer {
  return makeRecord(item >> 1, { payloadBytes: PAGE, shard: item % 2 }).key;
}

/** Settles a call's items with these statuses. */
function settle(statuses: readonly number[], reason: string | null = null): void {
  const bytes = statuses.length;
  window.settle({ statuses: Uint8Array.from(statuses), bytes, reason });
}

test("the call brings every shard of every block, each into its own slot", () => {
  const plan = window.asked();
  expect(plan.keys.equals(Buffer.concat([0, 1, 2, 3].map(keyOfItem)))).toBe(true);
  expect([...plan.leases]).toEqual([...blocks[0]!.leases, ...blocks[1]!.leases]);
});

test("a block is placed when its last shard is there", () => {
  settle([ACCEPTED, ACCEPTED, ACCEPTED, INCOMPLETE]);
  expect(blocks.map(({ state }) => state)).toEqual(["placed", "gone"]);
  expect(blocks[1]!.failure).toBe("vault_down");
});

test("a record that was refused fails its block once, and is reported", () => {
  settle([ACCEPTED, BAD_RECORD, ACCEPTED, MISSING], "torn");
  expect(blocks.map(({ failure }) => failure)).toEqual(["bad_record", "end_of_hit"]);
  expect(bad.map((key) => key.toString("hex"))).toEqual([keyOfItem(1).toString("hex")]);
  expect(arena.status().freeSlots).toBe(8);
});

test("both shards refused: one report, and no room here is nobody's fault", () => {
  settle([BAD_RECORD, BAD_RECORD, OVER_BUDGET, ACCEPTED]);
  expect(blocks.map(({ failure }) => failure)).toEqual(["bad_record", "overload"]);
  expect(bad).toHaveLength(1);
});

test("after the end everything is given back, and later records are ignored", () => {
  window.end("vault_down");
  expect(blocks.map(({ failure }) => failure)).toEqual(["vault_down", "vault_down"]);
  expect(window.signal.aborted).toBe(true);
  expect(arena.status().freeSlots).toBe(8);
  settle([ACCEPTED, BAD_RECORD, ACCEPTED, ACCEPTED]);
  expect(blocks.map(({ state }) => state)).toEqual(["gone", "gone"]);
  expect(bad).toHaveLength(0);
});

test("a window is given up when no plan wants the rest, not before", () => {
  window.dropUnwanted();
  blocks[1]!.user = null;
  window.dropUnwanted();
  expect(window.signal.aborted).toBe(false);
  blocks[0]!.user = null;
  window.dropUnwanted();
  expect(window.signal.aborted).toBe(true);
  expect(blocks.map(({ state }) => state)).toEqual(["gone", "gone"]);
});
