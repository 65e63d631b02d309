// Owns the fuzz stage: builds the targets of crates/fuzz with coverage, on stable Rust, and runs each for a while.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { LOGS, at } from "./lib/paths.js";
import { run } from "./lib/process.js";

const BUILD_TIMEOUT_MS = 10 * 60_000;
const SECONDS = 60;
/** Allowance for a loaded machine. */
const GRACE_MS = 2 * 60_000;
const AT_A_TIME = 2;

/** Instrumentation that libFuzzer reads: stable compiler flags, for the target's code and not for build scripts. */
const COVERAGE = [
  "-Cpasses=sancov-module",
  "-Cllvm-args=-sanitizer-coverage-level=4",
  "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
  "-Cllvm-args=-sanitizer-coverage-pc-table",
  "-Cllvm-args=-sanitizer-coverage-trace-compares",
  "-Ccodegen-units=1",
];

const say = (text) => process.stdout.write(`${text}\n`);
const crate = at("crates", "fuzz");
const artifacts = join(LOGS, "fuzz");

/** Builds every target; returns the programs' folder. Throws with the compiler's last lines. */
async function build() {
  const host = /^host: (.+)$/m.exec(execFileSync("cargo", ["-vV"], { encoding: "utf8" }))[1];
  const target = at("crates", "target", "fuzz");
  const args = ["build", "--release", "--target", host, "--target-dir", target];
  const built = await run("cargo", args, {
    cwd: crate,
    env: { RUSTFLAGS: COVERAGE.join(" ") },
    timeoutMs: BUILD_TIMEOUT_MS,
    logPath: join(LOGS, "fuzz-build.log"),
  });
  if (built.code !== 0) throw new Error(`the fuzz targets do not build\n${built.tail.join("\n")}`);
  return join(target, host, "release");
}

/** Runs one target; returns whether it found nothing. New inputs go to a temporary folder. */
async function fuzz(folder, name, seconds) {
  const found = mkdtempSync(join(tmpdir(), `tierkv-fuzz-${name}-`));
  const flags = [`-max_total_time=${seconds}`, "-timeout=60", "-rss_limit_mb=1024"];
  const where = [`-artifact_prefix=${artifacts}/${name}-`, found, join(crate, "corpus", name)];
  const log = join(LOGS, `fuzz-${name}.log`);
  const lines = [];
  const ran = await run(
    join(folder, name),
    [...flags, "-max_len=4096", "-print_final_stats=1", ...where],
    { timeoutMs: seconds * 1000 + GRACE_MS, logPath: log, onLine: (line) => lines.push(line) },
  );
  rmSync(found, { recursive: true, force: true });
  const units = /number_of_executed_units: (\d+)/.exec(lines.join("\n"))?.[1] ?? "0";
  const isGuided = lines.some((line) => line.includes("inline 8-bit counters"));
  if (ran.code === 0 && !ran.timedOut && isGuided && Number(units) > 0) {
    say(`fuzz ${name}: ok, ${units} inputs in ${seconds} s`);
    return true;
  }
  for (const line of lines.slice(-40)) say(`  ${line}`);
  say(
    `fuzz ${name}: FAILED${isGuided ? "" : " (no coverage)"}; inputs in ${artifacts}, log ${log}`,
  );
  return false;
}

const { values } = parseArgs({
  options: { seconds: { type: "string", default: String(SECONDS) }, only: { type: "string" } },
});
mkdirSync(artifacts, { recursive: true });
const names = values.only?.split(",") ?? readdirSync(join(crate, "corpus")).sort();
const folder = await build();
const waiting = [...names];
const results = [];
async function work() {
  for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) {
    results.push(await fuzz(folder, name, Number(values.seconds)));
  }
}
await Promise.all(Array.from({ length: AT_A_TIME }, work));
process.exitCode = results.every(Boolean) && results.length > 0 ? 0 : 1;
