// Owns the proof that leases are counted right and that a closed arena asks for nothing more.
import { closeSync, openSync, readSync } from "node:fs";
import { expect, test } from "vitest";
import { Arena, SIDECAR_OWNER } from "../../src/arena/arena.ts";
import { writeSlot } from "../support/native.ts";
import { closeAfterTest, until } from "../support/vaults.ts";

async function open(slotCount = 8): Promise<Arena> {
  const arena = closeAfterTest(new Arena({ slotBytes: 4096, slotCount, dir: null }));
  await until(() => arena.status().touchedSlots === slotCount, "a touched arena");
  return arena;
}

test("leases are given, handed over, released, and never twice", async () => {
  const arena = await open();
  const leases = arena.lease(5, 3);
  expect(leases).toHaveLength(6);
  const [slot, generation] = [leases[0]!, leases[1]!];
  arena.handOver(slot, generation, SIDECAR_OWNER);
  expect(arena.releaseOwner(5)).toBe(2);
  expect(arena.status().leasedSlots).toBe(1);
  arena.release(slot, generation);
  expect(arena.status().freeSlots).toBe(8);
  expect(() => arena.release(slot, generation)).toThrow(/slot/);
});

test("no more is leased than there is", async () => {
  const arena = await open();
  expect(arena.lease(1, 99)).toHaveLength(16);
  expect(arena.lease(2, 1)).toHaveLength(0);
});

test("the path leads to the same bytes", async () => {
  const arena = await open();
  writeSlot(arena.id, 3, Buffer.from("here"));
  const fd = openSync(arena.path, "r");
  const bytes = Buffer.alloc(4);
  readSync(fd, bytes, 0, 4, 3 * 4096);
  closeSync(fd);
  expect(bytes.toString()).toBe("here");
});

test("after close releases are nothing, and closing again too", async () => {
  const arena = await open();
  const leases = arena.lease(1, 1);
  arena.close();
  arena.close();
  arena.releaseAll(leases);
  expect(arena.releaseOwner(1)).toBe(0);
});
