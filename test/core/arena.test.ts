// Owns the proof of the arena across the border: other processes see it, owners let go of it, sweeps clear it.
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import {
  arenaStatus,
  chownSlot,
  closeArena,
  createArena,
  leaseSlots,
  prefaultArena,
  releaseOwner,
  releaseSlot,
  sweepArenaDir,
} from "../../src/base/native.ts";
import { retainSlot, readSlot, writeSlot } from "../support/native.ts";
import { leaseOne, withArena } from "../support/slots.ts";

const SLOT = 8192;
let dir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-arena-test-"));
});

afterEach(() => {
  rmSync(dir, { recursive: true, force: true });
});

test.each(["memfd", "file"])(
  "another process reads and writes the same bytes (%s)",
  async (kind) => {
    const shape = kind === "file" ? { dir } : {};
    await withArena({ slotBytes: SLOT, slotCount: 4, ...shape }, (arena, path) => {
      writeSlot(arena, 1, Buffer.from("from the sidecar"));
      const script = `
      const fs = require("node:fs");
      const fd = fs.openSync(${JSON.stringify(path)}, "r+");
      const seen = Buffer.alloc(16);
      fs.readSync(fd, seen, 0, 16, ${SLOT});
      fs.writeSync(fd, "from the engine", 2 * ${SLOT});
      process.stdout.write(seen);
    `;
      const seen = execFileSync(process.execPath, ["-e", script]);
      expect(seen.toString()).toBe("from the sidecar");
      expect(readSlot(arena, 2).toString("utf8", 0, 15)).toBe("from the engine");
    });
  },
);

test("no slot is granted before its memory is there", () => {
  const { id } = createArena({ slotBytes: SLOT, slotCount: 4, dir: null, label: 1 });
  expect(leaseSlots(id, 1, 4)).toHaveLength(0);
  closeArena(id);
  closeArena(id);
  expect(() => prefaultArena(id)).toThrow(/arena \d+ is unknown/);
});

test("owners, shares and generations", async () => {
  await withArena({ slotBytes: SLOT, slotCount: 4 }, (arena) => {
    const saved = leaseOne(arena, 7);
    const shared = leaseOne(arena, 7);
    chownSlot(arena, saved.slot, saved.generation, 0);
    retainSlot(arena, shared.slot, shared.generation);
    expect(releaseOwner(arena, 7), "all its leases, whatever their shares").toBe(1);
    expect(() => releaseSlot(arena, shared.slot, shared.generation)).toThrow(/is free/);
    expect(arenaStatus(arena)).toMatchObject({ freeSlots: 3, leasedSlots: 1, failed: null });
    expect(releaseSlot(arena, saved.slot, saved.generation)).toBe(true);
    expect(leaseOne(arena), "the last freed first, in a new generation").toEqual({
      slot: saved.slot,
      generation: saved.generation + 1,
    });
  });
});

test("a file is private, gone at close, and swept when its process died", () => {
  const left = join(dir, "tierkv-arena-1-0");
  writeFileSync(left, "");
  const { id, path } = createArena({ slotBytes: SLOT, slotCount: 1, dir, label: 1 });
  expect(statSync(path).mode & 0o7777).toBe(0o600);
  expect(sweepArenaDir(dir)).toBe(1);
  expect(existsSync(left)).toBe(false);
  expect(existsSync(path)).toBe(true);
  closeArena(id);
  expect(readdirSync(dir)).toEqual([]);
});

test.each([
  [{ slotBytes: 4095, slotCount: 1, dir: null }, "BAD_ARGUMENT", "slotBytes is 4095"],
  [{ slotBytes: 4096.5, slotCount: 1, dir: null }, "BAD_ARGUMENT", "slotBytes is 4096.5"],
  [{ slotBytes: -4096, slotCount: 1, dir: null }, "BAD_ARGUMENT", "slotBytes is -4096"],
  [{ slotBytes: Number.NaN, slotCount: 1, dir: null }, "BAD_ARGUMENT", "slotBytes is NaN"],
  [{ slotBytes: 4096, slotCount: 0, dir: null }, "BAD_ARGUMENT", "slotCount is 0"],
  [{ slotBytes: 4096, slotCount: 1, dir: "/nonexistent" }, "ARENA_FAILED", "/nonexistent"],
])("%j is refused", (options, code, words) => {
  const refusal = { code, message: expect.stringContaining(words) as string };
  expect(() => createArena({ ...options, label: 1 })).toThrow(
    expect.objectContaining(refusal) as Error,
  );
});
