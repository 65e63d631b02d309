// Owns the rule that the table of faults and the tests named after them agree.
import { FAULTS, isLoaded } from "../faults/table.ts";
import type { Rule, Source } from "./sources.ts";

/** What follows a bracket, also that of `test.each(...)(`, or stands as a row's title. */
const TS_TITLE = /\(\s*["`]F(\d+) |\btitle: "F(\d+) /g;
const PYTHON_TITLE = /\bdef test_f(\d+)_/g;
const RUST_TITLE = /#\[test\]\s+(?:#\[[^\]]*\]\s+)*fn f(\d+)_/g;
const TITLES: readonly [RegExp, RegExp][] = [
  [/\.test\.ts$/, TS_TITLE],
  [/test_\w+\.py$/, PYTHON_TITLE],
  [/^crates\/.*\.rs$/, RUST_TITLE],
];

/** Ids of the faults that a file's tests are named after. */
function driven({ path, text }: Source): Set<string> {
  const title = TITLES.find(([names]) => names.test(path))?.[1];
  if (title === undefined) return new Set();
  return new Set([...text.matchAll(title)].map((hit) => `F${hit[1] ?? hit[2] ?? ""}`));
}

const isTest = ({ path }: Source): boolean =>
  !path.startsWith("test/tidy/") && TITLES.some(([names]) => names.test(path));

const rows: Rule = {
  name: "every fault is driven by the tests that the table names, or said to be open",
  breaches(sources) {
    const known = new Map(sources.filter(isTest).map((source) => [source.path, driven(source)]));
    return FAULTS.flatMap((row) => {
      const { id, tests, open } = row;
      if (tests.length === 0 && open === undefined) return [`${id} has neither tests nor a reason`];
      if (tests.length > 0 && isLoaded(row) === (row.unloaded !== undefined)) {
        return [`${id} is either driven under load, or says why not`];
      }
      const lacking = tests.filter((path) => known.get(path)?.has(id) !== true);
      return lacking.map((path) => `${path} has no test whose title begins with ${id}`);
    });
  },
  examples: [{ "test/faults/network.test.ts": 'test("F40 something", () => {' }],
};

const titles: Rule = {
  name: "every test that is named after a fault stands in the table",
  breaches: (sources) =>
    sources.filter(isTest).flatMap((source) => {
      const isListed = (id: string): boolean =>
        FAULTS.some((row) => row.id === id && (row.tests.includes(source.path) || isOpen(id)));
      return [...driven(source)]
        .filter((id) => !isListed(id))
        .map((id) => `${source.path} drives ${id}: name it in test/faults/table.ts`);
    }),
  examples: [
    { "test/client/a.test.ts": 'test("F7 something", () => {' },
    { "python-shim/tests/test_a.py": "def test_f7_something() -> None:" },
    { "crates/core/tests/a.rs": "#[test]\nfn f7_something() {" },
  ],
};

/** A row that nothing drives may get its first test before the table names it. */
function isOpen(id: string): boolean {
  return FAULTS.some((row) => row.id === id && row.tests.length === 0);
}

export const FAULT_RULES: readonly Rule[] = [rows, titles];
