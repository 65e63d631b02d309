// Owns the proof that no runner's failure is counted as a success.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import {
  cargoCounts,
  cargoFailures,
  fuzzCounts,
  pytestCounts,
  pytestFailures,
  sum,
  vitestCounts,
  vitestFailures,
  vitestUnfinished,
} from "../../.ci/lib/counts.js";

let folder = "";

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "tierkv-counts-"));
});

afterEach(() => rmSync(folder, { recursive: true }));

function file(text: string): string {
  const path = join(folder, "report");
  writeFileSync(path, text);
  return path;
}

test("sums what every stage counted", () => {
  const one = { passed: 1, failed: 2, skipped: 3 };
  expect(sum([one, one])).toEqual({ passed: 2, failed: 4, skipped: 6 });
  expect(sum([])).toEqual({ passed: 0, failed: 0, skipped: 0 });
});

test("reads one cargo line per test binary, coloured or not", () => {
  const green = "\u001B[32mok\u001B[0m";
  const log = [
    "running 3 tests",
    `test result: ${green}. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out`,
    "test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
  ];
  expect(cargoCounts(file(log.join("\n")))).toEqual({ passed: 6, failed: 1, skipped: 1 });
  expect(cargoCounts(file("error: could not compile"))).toEqual(sum([]));
});

test("reads one line per fuzz target", () => {
  const log = ["fuzz frame: ok, 8 inputs in 30 s", "fuzz index: FAILED (no coverage)", "fuzz: ok"];
  expect(fuzzCounts(file(log.join("\n")))).toEqual({ passed: 1, failed: 1, skipped: 0 });
});

test("a test file that does not load is a failure", () => {
  const ok = { status: "passed", assertionResults: [{ status: "passed" }] };
  const red = { status: "failed", assertionResults: [{ status: "failed" }] };
  const broken = { status: "failed", assertionResults: [] };
  const report = {
    numPassedTests: 1,
    numFailedTests: 1,
    numPendingTests: 2,
    numTodoTests: 0,
    testResults: [ok, red, broken],
  };
  const counted = { passed: 1, failed: 2, skipped: 2 };
  expect(vitestCounts(file(JSON.stringify(report)))).toEqual(counted);
});

test("a test file whose process died is named, with the test it died at", () => {
  const ok = { name: "ok.ts", assertionResults: [{ status: "passed" }, { status: "skipped" }] };
  const died = {
    name: "died.ts",
    assertionResults: [
      { status: "passed", fullName: "a" },
      { status: "pending", fullName: "b" },
      { status: "pending", fullName: "c" },
    ],
  };
  const report = file(JSON.stringify({ testResults: [ok, died] }));
  expect(vitestUnfinished(report)).toEqual(['died.ts (at "b")']);
  expect(vitestUnfinished(join(folder, "missing"))).toEqual([]);
});

test("pytest's errors are failures", () => {
  const xml =
    '<?xml version="1.0"?><testsuites name="x"><testsuite name="pytest" errors="1" failures="2" skipped="1" tests="9" time="1.0"><testcase/></testsuite></testsuites>';
  expect(pytestCounts(file(xml))).toEqual({ passed: 5, failed: 3, skipped: 1 });
});

test("a runner that left no report ran nothing", () => {
  const missing = join(folder, "missing");
  expect(vitestCounts(missing)).toEqual(sum([]));
  expect(pytestCounts(missing)).toEqual(sum([]));
});

test("what failed is named with its reason, whatever the runner", () => {
  const log = [
    "test store::evicts ... \u001B[31mFAILED\u001B[0m",
    "test store::keeps ... ok",
    "test a - should panic ... FAILED",
    "",
    "---- store::evicts stdout ----",
    "",
    "thread 'store::evicts' panicked at src/store.rs:7:5:",
    "left: 1",
    "",
    "failures:",
  ];
  expect(cargoFailures(file(log.join("\n")))).toEqual([
    "store::evicts: thread 'store::evicts' panicked at src/store.rs:7:5: left: 1",
    "a",
  ]);
  const testResults = [
    {
      name: "broken.ts",
      status: "failed",
      message: "no such\nimport\n    at file.ts:1:1",
      assertionResults: [],
    },
    {
      name: "red.ts",
      status: "failed",
      assertionResults: [
        {
          status: "failed",
          fullName: "it holds",
          failureMessages: [`${"y".repeat(500)}\n    at file.ts:1:1`],
        },
        { status: "passed", fullName: "it ends" },
      ],
    },
  ];
  const report = file(JSON.stringify({ testResults }));
  expect(vitestFailures(report)).toEqual([
    "broken.ts: no such import",
    `red.ts > it holds: ${"y".repeat(400)}`,
  ]);
  const xml = [
    '<testsuite tests="3"><testcase classname="tests.a" name="one" time="0.1" />',
    '<testcase classname="tests.a" name="two"><failure message="assert 1 &lt; 0&#10;x">text</failure></testcase>',
    '<testcase classname="" name="b"><error message="collection failure">text</error></testcase></testsuite>',
  ];
  expect(pytestFailures(file(xml.join("")))).toEqual([
    "tests.a::two: assert 1 < 0 x",
    "::b: collection failure",
  ]);
});
