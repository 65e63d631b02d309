// Owns the verdict: runs everything that must hold and ends with the line "N passed, N failed".
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { availableParallelism, cpus } from "node:os";
import { dirname, join } from "node:path";
import { parseArgs } from "node:util";
import { sum } from "./lib/counts.js";
import { LOGS, VENV, at } from "./lib/paths.js";
import { elapsed, run } from "./lib/process.js";
import { progress } from "./lib/progress.js";
import { changedRooms, missingFor, roomNames, roomOf } from "./lib/rooms.js";
import { NIGHTLY, STAGES, quickStages } from "./lib/stages.js";

const NAME_WIDTH = 18;
const COLOURS = { FORCE_COLOR: "1", CARGO_TERM_COLOR: "always", PY_COLORS: "1" };

const say = (text = "") => process.stdout.write(`${text}\n`);
const env = {
  ...(process.stdout.isTTY ? COLOURS : { NO_COLOR: "1" }),
  // Bytecode is cached for all processes, because an engine imports 5,500 modules and compiling them takes 14 s.
  PYTHONDONTWRITEBYTECODE: "",
  PYTHONPYCACHEPREFIX: join(VENV, "pycache"),
};

const USAGE = `usage: npm test [-- --only NAME,NAME]; npm run test:nightly [-- --only NAME,NAME]; npm run quick [-- ROOM ...]
Runs all stages, or the named stages and checks, which HACKING.md describes.`;

/** Ends the program, whose call is wrong. */
function refuse(text) {
  say(text);
  process.exit(2);
}

/** Returns the options of the call; ends the program for an unknown option, and for --help. */
function parsed() {
  const options = {
    only: { type: "string" },
    nightly: { type: "boolean", default: false },
    quick: { type: "boolean", default: false },
    help: { type: "boolean", short: "h", default: false },
  };
  try {
    return parseArgs({ options, allowPositionals: true });
  } catch (error) {
    return refuse(`${error.message}\n${USAGE}`);
  }
}

const { values, positionals } = parsed();
if (values.help) {
  say(USAGE);
  process.exit(0);
}

/** Returns the stages of the rooms that were named, or of those with changes since the last commit. */
function quick() {
  const names = positionals.length > 0 ? positionals : changedRooms();
  const rooms = names.map((name) => {
    const room = roomOf(name);
    if (room === null) refuse(`no such room: ${name}; there are ${roomNames().join(", ")}`);
    const missing = missingFor(room);
    if (missing !== null) refuse(missing);
    return room;
  });
  say(`rooms: ${names.join(", ") || "none has changes since the last commit"}`);
  return quickStages(rooms);
}

/** Returns the stages and checks to run: all, or the stages named by `--only a,b`; `--nightly` uses the long list. */
function chosen() {
  if (values.quick) return quick();
  const stages = values.nightly ? NIGHTLY : STAGES;
  if (values.only === undefined) return stages;
  const wanted = new Set(values.only.split(","));
  const picked = [];
  for (const stage of stages) {
    const checks = stage.checks?.filter((check) => wanted.delete(check.name));
    if (wanted.delete(stage.name)) picked.push(stage);
    else if (checks?.length > 0) picked.push({ ...stage, checks, isPart: true });
  }
  if (wanted.size > 0) {
    const names = stages.flatMap((stage) => [stage, ...(stage.checks ?? [])]).map((s) => s.name);
    refuse(`no such stage or check: ${[...wanted].join(", ")}; there are ${names.join(", ")}`);
  }
  return picked;
}

const logOf = (name) => join(LOGS, `${name.replaceAll(" ", "-")}.log`);

/** Returns the fault of a finished command beside its counted tests, or null. */
function complaint(result, count) {
  if (result.timedOut) return "ran past its time limit";
  if (result.leftovers) return "left processes running";
  if (result.code !== 0 && count.failed === 0) return `ended with exit code ${result.code}`;
  if (count.passed + count.failed === 0) return "ran no test";
  return null;
}

/** Runs the checks, Rust's beside the others; prints a failed one's whole output. */
async function runChecks(checks, tell) {
  const rows = [];
  const inTurn = async (some) => {
    for (const check of some) rows.push(await runCheck(check, tell));
  };
  const isRust = ({ command }) => command === "cargo";
  await Promise.all([inTurn(checks.filter(isRust)), inTurn(checks.filter((one) => !isRust(one)))]);
  const failures = rows.filter(({ failed }) => failed).map(({ name }) => name);
  const failed = failures.length;
  return { count: { passed: rows.length - failed, failed, skipped: 0 }, failures };
}

async function runCheck(check, tell) {
  const lines = [];
  // The output of a stage beside another is kept back, and the other stage's shows that something runs.
  const shown = tell === say ? progress(check.name) : null;
  const onLine = (line) => {
    lines.push(line);
    shown?.note(line);
  };
  const options = { ...check, env, logPath: logOf(check.name), onLine };
  const result = await run(check.command, check.args, options);
  const failed = result.code !== 0 || result.timedOut || result.leftovers;
  if (shown !== null) shown.done(failed ? "FAIL" : "ok");
  else
    tell(`  ${failed ? "FAIL" : " ok "}  ${check.name.padEnd(NAME_WIDTH)} ${elapsed(result.ms)}`);
  if (failed) for (const line of lines) tell(`        ${line}`);
  return { name: check.name, failed };
}

/** Runs one test runner, streams its output, and reads its counts. */
async function runTests(stage, tell) {
  const logPath = logOf(stage.name);
  if (stage.report) rmSync(stage.report, { force: true });
  const options = {
    ...stage,
    env: { ...env, ...stage.env },
    logPath,
    onLine: (line) => tell(`  ${line}`),
  };
  const result = await run(stage.command, stage.args, options);
  let count;
  let wrong;
  let failures = [];
  try {
    count = stage.count();
    failures = stage.failures?.() ?? [];
    wrong = complaint(result, count);
    const unfinished = stage.unfinished?.() ?? [];
    if (unfinished.length > 0)
      wrong = `${wrong ?? "failed"}; not finished: ${unfinished.join(", ")}`;
  } catch (error) {
    count = { passed: 0, failed: 0, skipped: 0 };
    wrong = `left an unreadable report (${error.message})`;
  }
  if (wrong !== null) {
    tell(`  FAIL  ${stage.name}: ${wrong}; full log: ${logPath}`);
    count.failed += 1;
    failures.push(wrong);
  }
  return { count, failures };
}

function describe({ passed, failed, skipped }) {
  return `${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ""}`;
}

const keptAt = (name) => at("bench", "results", name);

/** Returns the rows of earlier nightly stages, each with its commit. */
function keptNightly() {
  const path = keptAt("nightly.json");
  return existsSync(path) ? JSON.parse(readFileSync(path, "utf8")).stages : [];
}

/** Records each stage's time and counts, latest run only. Nightly stages merge, because they may run one by one. */
function keep(ran) {
  const commit = execFileSync("git", ["rev-parse", "--short", "HEAD"], { encoding: "utf8" }).trim();
  const cpu = `${availableParallelism()} x ${cpus()[0]?.model ?? "unknown"}`;
  const date = new Date().toISOString().slice(0, 10);
  const rows = ran.map(({ name, count, ms }) => ({
    name,
    seconds: Math.round(ms / 1000),
    ...count,
    date,
    commit,
    cpu,
  }));
  const kept = values.nightly ? keptNightly() : [];
  const latest = new Map([...kept, ...rows].map((row) => [row.name, row]));
  const stages = (values.nightly ? NIGHTLY : STAGES).flatMap(({ name }) => latest.get(name) ?? []);
  const path = keptAt(values.nightly ? "nightly.json" : "ci.json");
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `${JSON.stringify({ stages }, null, 2)}\n`);
}

/** Runs one stage with its output going to `tell`; returns its row of the summary. */
async function runStage(stage, tell) {
  tell(`== ${stage.name}`);
  const startedMs = Date.now();
  const ran = await (stage.checks ? runChecks(stage.checks, tell) : runTests(stage, tell));
  return { name: stage.name, isPart: stage.isPart, ms: Date.now() - startedMs, ...ran };
}

/** Runs a stage and its `beside` stages at once; prints the output of the latter at the end. */
async function runGroup([stage, ...beside]) {
  const lines = [];
  const others = beside.map((other) => runStage(other, (line) => lines.push(line)));
  const ran = await Promise.all([runStage(stage, say), ...others]);
  for (const line of lines) say(line);
  return ran;
}

const stages = chosen();
const rows = [];
for (const stage of stages) {
  if (stages.some(({ name }) => name === stage.beside)) continue;
  const beside = stages.filter((other) => other.beside === stage.name);
  rows.push(...(await runGroup([stage, ...beside])));
}

say();
for (const { name, failures } of rows) {
  for (const failure of failures) say(`FAILED  ${name}: ${failure}`);
}
for (const { name, count, ms } of rows) {
  say(`${name.padEnd(NAME_WIDTH)} ${elapsed(ms).padStart(10)}   ${describe(count)}`);
}
const total = sum(rows.map((row) => row.count));
if (values.nightly || (values.only === undefined && !values.quick))
  keep(rows.filter(({ isPart }) => !isPart));
say(describe(total));
process.exitCode = total.failed > 0 || total.passed === 0 ? 1 : 0;
