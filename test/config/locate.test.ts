// Owns the proof that the line of a key is found in every way TOML lets one write it.
import { expect, test } from "vitest";
import { lineOf } from "../../src/config/locate.ts";

test.each([
  ["below its table", "[a]\nb = 1", ["a", "b"], 2],
  ["with a dotted key", "x = 1\na.b = 1", ["a", "b"], 2],
  ["with a dotted table", "[a.b]\nc = 1", ["a", "b", "c"], 2],
  ["in quotes", "[\"a\"]\n'b' = 1", ["a", "b"], 2],
  ["with white space", "  [ a ]\n\tb   =1", ["a", "b"], 2],
  ["in an inline table: the line of the table", "z = 1\na = { b = 1 }", ["a", "b"], 2],
  ["the table itself", "\n[a]\nb = 1", ["a"], 2],
  ["an array of tables", "[[a]]\nb = 1", ["a"], 1],
  ["not inside a text of several lines", 'x = """\n[a]\nb = 1\n"""\n[a]\nb = 2', ["a", "b"], 6],
  ["not in a comment", "# [a]\n# b = 1\n[a]\nb = 1", ["a", "b"], 4],
  ["Windows line ends", "[a]\r\nb = 1\r\n", ["a", "b"], 2],
  ["nowhere", "[a]\nb = 1", ["c"], null],
  ["only its table", "[a]\nb = 1", ["a", "c"], 1],
])("%s", (_name, source, path, line) => {
  expect(lineOf(source, path)).toBe(line);
});
