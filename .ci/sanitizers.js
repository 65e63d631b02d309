// Owns the runs of the core's tests under AddressSanitizer and ThreadSanitizer: `npm run test:asan`, `npm run test:tsan`. Needs a nightly toolchain of Rust.
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { LOGS, at } from "./lib/paths.js";
import { run } from "./lib/process.js";

const TIMEOUT_MS = 40 * 60_000;
/** Tests that compare the process's memory with what is counted: the sanitizer's own would be counted, too. */
const LEFT_OUT = ["store_memory", "disk_full"];

/** The standard library is not built anew: that needs its source, which not every toolchain has. */
const SANITIZERS = {
  asan: {
    flags: "-Zsanitizer=address",
    env: { ASAN_OPTIONS: "detect_leaks=1:allocator_may_return_null=1" },
  },
  tsan: {
    flags: "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer",
    env: { TSAN_OPTIONS: `suppressions=${at(".ci", "lib", "tsan-suppressions.txt")}` },
  },
};
const which = process.argv.includes("--threads") ? "tsan" : "asan";

const say = (text) => process.stdout.write(`${text}\n`);

/** Names of the core's test programs, those apart that are left out. */
function programs() {
  const metadata = execFileSync(
    "cargo",
    ["metadata", "--no-deps", "--format-version", "1", "--offline"],
    { cwd: at("crates"), encoding: "utf8", maxBuffer: 2 ** 26 },
  );
  const core = JSON.parse(metadata).packages.find(({ name }) => name === "tierkv-core");
  return core.targets
    .filter(({ kind, name }) => kind.includes("test") && !LEFT_OUT.includes(name))
    .map(({ name }) => name);
}

async function main() {
  const host = /^host: (.+)$/m.exec(execFileSync("cargo", ["-vV"], { encoding: "utf8" }))[1];
  const tests = programs().flatMap((name) => ["--test", name]);
  const args = ["+nightly", "test", "-p", "tierkv-core", "--no-fail-fast", "--target", host];
  const place = ["--target-dir", at("crates", "target", which)];
  const { flags, env } = SANITIZERS[which];
  const logPath = join(LOGS, `${which}.log`);
  const passed = [];
  const ran = await run("cargo", [...args, ...place, "--lib", ...tests], {
    cwd: at("crates"),
    env: { RUSTFLAGS: flags, ...env },
    timeoutMs: TIMEOUT_MS,
    logPath,
    onLine: (line) =>
      passed.push(...(/^test result: \w+\. (\d+) passed/.exec(line) ?? []).slice(1)),
  });
  const count = passed.reduce((sum, text) => sum + Number(text), 0);
  const isSound = ran.code === 0 && count > 0;
  say(isSound ? `${which}: ${count} tests, nothing found` : `${which}: see ${logPath}`);
  if (!isSound) say(ran.tail.join("\n"));
  process.exitCode = isSound ? 0 : 1;
}

await main();
