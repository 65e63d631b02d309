// Owns the proof that a file people wrote keeps everything but the one value, and is left alone where that is not sure.
import fc from "fast-check";
import { parse } from "smol-toml";
import { describe, expect, test } from "vitest";
import { setText } from "../../src/config/edit.ts";

const set = (text: string): string | null => setText(text, "cluster", "kv_cold", "10.0.0.2:1");

describe("sets a value", () => {
  test.each<[name: string, before: string, after: string]>([
    ["in an empty file", "", '[cluster]\nkv_cold = "10.0.0.2:1"\n'],
    [
      "behind other tables",
      '[log]\nlevel = "info"\n',
      '[log]\nlevel = "info"\n\n[cluster]\nkv_cold = "10.0.0.2:1"\n',
    ],
    [
      "that is there, with the comment behind it",
      '# mine\n[cluster] # here\n  kv_cold = "10.0.0.1:1"  # the old box\nrole = "inference"\n',
      '# mine\n[cluster] # here\n  kv_cold = "10.0.0.2:1"  # the old box\nrole = "inference"\n',
    ],
    [
      "below the other keys of its table, before what comments on the next",
      '[cluster]\nrole = "inference"\n\n# about the vault\n[vault]\nmax_bytes = 1\n',
      '[cluster]\nrole = "inference"\nkv_cold = "10.0.0.2:1"\n\n# about the vault\n[vault]\nmax_bytes = 1\n',
    ],
    [
      "and not in a table of another name",
      '[other]\nkv_cold = "10.0.0.1:1"\n[cluster]\n',
      '[other]\nkv_cold = "10.0.0.1:1"\n[cluster]\nkv_cold = "10.0.0.2:1"\n',
    ],
    [
      "and not in a comment",
      '[cluster]\n# kv_cold = "10.0.0.1:1"\n',
      '[cluster]\nkv_cold = "10.0.0.2:1"\n# kv_cold = "10.0.0.1:1"\n',
    ],
  ])("%s", (_name, before, after) => {
    expect(set(before)).toBe(after);
    expect(set(after)).toBe(after);
  });
});

describe("leaves alone", () => {
  test.each<[name: string, text: string]>([
    ["what is not TOML", "[cluster"],
    ["a table in one line", 'cluster = { kv_cold = "10.0.0.1:1" }\n'],
    ["a dotted key", 'cluster.kv_cold = "10.0.0.1:1"\n'],
    ["a value over several lines", '[cluster]\nkv_cold = """\n10.0.0.1:1"""\n'],
    ["a value that is no text", "[cluster]\nkv_cold = 1\n"],
    ["a key in quotes", '[cluster]\n"kv_cold" = "10.0.0.1:1"\n'],
    ["a header inside a text", 'about = """\n[cluster]\n"""\n'],
  ])("%s", (_name, text) => {
    expect(set(text)).toBeNull();
  });
});

test("any value comes back as it was given", () => {
  const value = fc.string({ unit: "grapheme-ascii", maxLength: 40 });
  fc.assert(
    fc.property(value, (text) => {
      const edited = setText('[cluster]\nkv_cold = "old" # c\n', "cluster", "kv_cold", text);
      expect(edited).toContain("# c");
      expect(parse(edited ?? "")).toEqual({ cluster: { kv_cold: text } });
    }),
  );
});

test("a list takes the place of a text, and a longer one that of a list", () => {
  const before = '[cluster]\nkv_cold = "10.0.0.1:1" # mine\n';
  const two = setText(before, "cluster", "kv_cold", ["10.0.0.1:1", "10.0.0.2:1"]);
  expect(two).toBe('[cluster]\nkv_cold = ["10.0.0.1:1", "10.0.0.2:1"] # mine\n');
  const three = setText(two!, "cluster", "kv_cold", ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]);
  expect(three).toContain('kv_cold = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"] # mine');
});
