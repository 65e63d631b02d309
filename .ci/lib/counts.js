// Owns the counts of executed tests, read from each runner's report or log.
import { existsSync, readFileSync } from "node:fs";
import { stripVTControlCharacters } from "node:util";

const NONE = Object.freeze({ passed: 0, failed: 0, skipped: 0 });

/** Returns the sums of several counts. */
export function sum(counts) {
  const total = { ...NONE };
  for (const key of Object.keys(total)) {
    for (const count of counts) total[key] += count[key];
  }
  return total;
}

/** One result line per test binary: "test result: ok. 12 passed; 0 failed; 1 ignored; ...". */
export function cargoCounts(logPath) {
  const log = stripVTControlCharacters(readFileSync(logPath, "utf8"));
  const results = log.matchAll(/^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored/gm);
  const read = ([, passed, failed, skipped]) => ({
    passed: Number(passed),
    failed: Number(failed),
    skipped: Number(skipped),
  });
  return sum([...results].map(read));
}

/** Characters of a reason, so that many failures still fit a terminal. */
const REASON_MAX = 400;

/** Returns "name: reason", the reason on one line and cut; the name alone where no reason is known. */
function withReason(name, reason) {
  const [told = ""] = stripVTControlCharacters(reason ?? "").split(/\n\s+at /);
  const line = told.replaceAll(/\s+/g, " ").trim();
  return line === "" ? name : `${name}: ${line.slice(0, REASON_MAX)}`;
}

/** Names of failed tests, each with its panic: "test store::evicts ... FAILED". */
export function cargoFailures(logPath) {
  const log = stripVTControlCharacters(readFileSync(logPath, "utf8"));
  const sections = log.matchAll(/^---- (\S+) stdout ----\n([^]*?)(?=\n---- |\nfailures:)/gm);
  const reasons = new Map([...sections].map(([, name, text]) => [name, text]));
  return [...log.matchAll(/^test (\S+).* \.\.\. FAILED$/gm)].map(([, name]) =>
    withReason(name, reasons.get(name)),
  );
}

/** One line per fuzz target: "fuzz frame: ok, ..." or "fuzz frame: FAILED ...". */
export function fuzzCounts(logPath) {
  const log = readFileSync(logPath, "utf8");
  const count = (pattern) => [...log.matchAll(pattern)].length;
  return { ...NONE, passed: count(/^fuzz \w+: ok/gm), failed: count(/^fuzz \w+: FAILED/gm) };
}

/** Returns the files whose process died, each with its pending test, because vitest names none itself. */
export function vitestUnfinished(reportPath) {
  if (!existsSync(reportPath)) return [];
  const { testResults } = JSON.parse(readFileSync(reportPath, "utf8"));
  return testResults.flatMap(({ name, assertionResults }) => {
    const at = assertionResults.find((test) => test.status === "pending");
    return at === undefined ? [] : [`${name} (at "${at.fullName}")`];
  });
}

/** Vitest's JSON report; a file that failed before its first test counts as one failure. */
export function vitestCounts(reportPath) {
  if (!existsSync(reportPath)) return { ...NONE };
  const report = JSON.parse(readFileSync(reportPath, "utf8"));
  const broken = report.testResults.filter(
    (file) =>
      file.status === "failed" && !file.assertionResults.some((test) => test.status === "failed"),
  );
  return {
    passed: report.numPassedTests,
    failed: report.numFailedTests + broken.length,
    skipped: report.numPendingTests + report.numTodoTests,
  };
}

/** Returns "file > test: reason" of each failed test, or the file where it failed before its first test. */
export function vitestFailures(reportPath) {
  if (!existsSync(reportPath)) return [];
  const { testResults } = JSON.parse(readFileSync(reportPath, "utf8"));
  return testResults.flatMap(({ name, status, message, assertionResults }) => {
    const failed = assertionResults.filter((test) => test.status === "failed");
    if (status === "failed" && failed.length === 0) return [withReason(name, message)];
    return failed.map((test) =>
      withReason(`${name} > ${test.fullName}`, test.failureMessages?.[0]),
    );
  });
}

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" };

/** Returns an XML attribute's text; a character reference stands for white space here. */
const unescaped = (text) => text.replaceAll(/&(#?\w+);/g, (_, name) => ENTITIES[name] ?? " ");

/** Returns "class::test: reason" of each case with a failure or an error. */
export function pytestFailures(reportPath) {
  if (!existsSync(reportPath)) return [];
  const cases = readFileSync(reportPath, "utf8").split("<testcase ").slice(1);
  return cases
    .filter((text) => /<(?:failure|error)\b/.test(text))
    .map((text) => {
      const value = (name) => new RegExp(`\\b${name}="([^"]*)"`).exec(text)?.[1] ?? "";
      const reason = /<(?:failure|error)\b[^>]*?\bmessage="([^"]*)"/.exec(text)?.[1] ?? "";
      return withReason(`${value("classname")}::${value("name")}`, unescaped(reason));
    });
}

/** Pytest's JUnit report; errors in fixtures and in collection are failures. */
export function pytestCounts(reportPath) {
  if (!existsSync(reportPath)) return { ...NONE };
  const suites = readFileSync(reportPath, "utf8").matchAll(/<testsuite\s([^>]*)>/g);
  const read = ([, attributes]) => {
    const value = (name) => Number(new RegExp(`\\b${name}="(\\d+)"`).exec(attributes)?.[1] ?? 0);
    const failed = value("failures") + value("errors");
    const skipped = value("skipped");
    return { passed: Math.max(0, value("tests") - failed - skipped), failed, skipped };
  };
  return sum([...suites].map(read));
}
