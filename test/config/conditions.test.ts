// Owns the proof that what a machine lacks is told before anything serves.
import { chmodSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { recordKeysStatus } from "../../src/base/native.ts";
import { checkConfig } from "../../src/config/check.ts";
import { checkArena, checkOpenFiles, loadRecordKeys } from "../../src/config/conditions.ts";
import type { Config } from "../../src/config/config.ts";

const GIB = 1024 ** 3;
let dir = "";

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-conditions-"));
});

afterEach(() => rmSync(dir, { recursive: true }));

function sidecar(toml: string): Config {
  const { config } = checkConfig(`[sidecar]\n${toml}\n`, null, {});
  if (config === null) throw new Error("bad test");
  return config;
}

const LIMITS = `Limit                     Soft Limit           Hard Limit           Units
Max processes             unlimited            unlimited            processes
Max open files            NUMBER               1048576              files
Max locked memory         8388608              8388608              bytes
`;

test("too few open files are refused with the number to set", () => {
  expect(() => checkOpenFiles(LIMITS.replace("NUMBER", "255"))).toThrow(
    "open files: the limit is 255, at least 256 are needed; raise it with `ulimit -n 1024`",
  );
});

test.each([
  ["enough", LIMITS.replace("NUMBER", "256")],
  ["no limit", LIMITS.replace("NUMBER", "unlimited")],
  ["a system that does not tell", null],
])("open files: %s", (_what, limits) => {
  expect(() => checkOpenFiles(limits)).not.toThrow();
});

test("this machine is asked", () => {
  expect(() => checkOpenFiles()).not.toThrow();
});

test("an arena above the machine's memory is refused, the default never", () => {
  expect(() => checkArena(sidecar('arena_bytes = "8GiB"'), 6 * GIB)).toThrow(
    `[sidecar] arena_bytes = ${8 * GIB}: this machine has ${6 * GIB} bytes of memory; write arena_bytes = ${1.5 * GIB} or less`,
  );
  expect(() => checkArena(sidecar('arena_bytes = "6GiB"'), 6 * GIB)).not.toThrow();
  expect(() => checkArena(sidecar(""), 1 * GIB)).not.toThrow();
});

test("an arena directory is made, for us alone", () => {
  const made = join(dir, "a", "b");
  checkArena(sidecar(`arena_dir = "${made}"`));
  expect(statSync(made).mode & 0o777).toBe(0o700);
  checkArena(sidecar(`arena_dir = "${made}"`));
});

test("a file for a directory is refused with what to write", () => {
  const file = join(dir, "file");
  writeFileSync(file, "");
  expect(() => checkArena(sidecar(`arena_dir = "${file}"`))).toThrow(
    /\[sidecar\] arena_dir = ".*file": it is not a directory; name a directory of yours on a memory file system/,
  );
});

test("record keys are read from a file of the owner's alone, and what is in it is never shown", async () => {
  const file = join(dir, "keys");
  const config = sidecar(`record_keys = "${file}"`);
  await expect(loadRecordKeys(config)).rejects.toMatchObject({ code: "CREDENTIALS" });
  writeFileSync(file, "secret", { mode: 0o600 });
  await expect(loadRecordKeys(config)).rejects.toThrow(
    /\[sidecar\] record_keys = ".*keys": the record keys: line 1 is not 64 hexadecimal digits; put a key on each line/,
  );
  await expect(loadRecordKeys(config)).rejects.not.toThrow("secret");
  writeFileSync(file, `${"5a".repeat(32)}\n`, { mode: 0o600 });
  await loadRecordKeys(config);
  expect(recordKeysStatus()).toEqual({ isSet: true, unopened: 0 });
  // The same again is no change; others would be.
  await loadRecordKeys(config);
  writeFileSync(file, `${"6b".repeat(32)}\n`, { mode: 0o600 });
  await expect(loadRecordKeys(config)).rejects.toThrow("sealed with other keys already");
  chmodSync(file, 0o640);
  await expect(loadRecordKeys(config)).rejects.toThrow("it has mode 640, so others may read it");
  await loadRecordKeys(sidecar(""));
});
