// Owns the proof of the border: every function of the core is there, and its failures carry codes.
import { expect, test } from "vitest";
import * as native from "../src/native.ts";

test("the core is the one that was built", () => {
  expect(native.coreInfo()).toMatchObject({ version: "0.1.0", recordVersion: 1, headerBytes: 192 });
});

test("every function the core exports has its guarded twin, and none besides", async () => {
  const core = (await import("../crates/node/index.js")) as Record<string, unknown>;
  const names = (module: object): string[] =>
    Object.entries(module)
      .filter(([, value]) => typeof value === "function")
      .map(([name]) => name)
      .sort();
  expect(names(native)).toEqual(names(core));
});

test("checksums are CRC32C", () => {
  expect(native.crc32c(Buffer.from("123456789"))).toBe(0xe3069283);
});

test.each([
  ["a record that is none", () => native.verifyRecord(Buffer.alloc(8)), "BAD_RECORD"],
  ["an id of nothing", () => native.storeStats(0xffff), "UNKNOWN_ID"],
  [
    "an impossible arena",
    () => native.createArena({ slotBytes: 1, slotCount: 1, dir: null }),
    "BAD_ARGUMENT",
  ],
])("%s is refused with a code", (_what, call, code) => {
  expect(call).toThrow(expect.objectContaining({ name: "TierkvError", code }) as Error);
});
