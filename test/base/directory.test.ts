// Owns the proof that a directory is made for us alone, and that what cannot be made is told, and ends in an error, not in a loop.
import {
  constants,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { isThere, makeDirectory } from "../../src/base/directory.ts";

let dir = "";

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-directory-"));
});

afterEach(() => rmSync(dir, { recursive: true }));

test("everything that is missing is made with mode 700", () => {
  makeDirectory(join(dir, "a", "b", "c"));
  for (const made of ["a", "a/b", "a/b/c"])
    expect(statSync(join(dir, made)).mode & 0o777).toBe(0o700);
});

test("what is there stays as it is", () => {
  const there = join(dir, "there");
  mkdirSync(there, { mode: 0o755 });
  makeDirectory(there);
  expect(statSync(there).mode & 0o777).toBe(0o755);
});

test.each([
  ["below a file", () => join(dir, "file", "d"), "ENOTDIR"],
  ["where none can be", () => "/proc/none/d", "ENOENT"],
])("%s it fails at once", (_where, path, code) => {
  writeFileSync(join(dir, "file"), "");
  expect(() => makeDirectory(path())).toThrow(code);
});

test("what is there is told from what could be made, and a file from both", () => {
  const file = join(dir, "file");
  writeFileSync(file, "", { mode: 0o777 });
  expect(isThere(dir, constants.W_OK)).toBe(true);
  expect(isThere(join(dir, "a", "b"), constants.W_OK)).toBe(false);
  for (const path of [file, join(file, "d")]) {
    expect(() => isThere(path, constants.W_OK)).toThrow("ENOTDIR");
  }
  expect(readdirSync(dir)).toEqual(["file"]);
});
