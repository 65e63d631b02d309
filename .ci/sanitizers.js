// Owns the runs under AddressSanitizer and ThreadSanitizer: `npm run test:asan` (the core; with `-- --node` its addon in Node), `npm run test:tsan`. Needs a nightly toolchain of Rust.
import { execFileSync } from "node:child_process";
import { copyFileSync } from "node:fs";
import { join } from "node:path";
import { LOGS, at } from "./lib/paths.js";
import { run } from "./lib/process.js";
import { vitest } from "./lib/stages.js";

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
const { flags, env } = SANITIZERS[which];
const HOST = /^host: (.+)$/m.exec(execFileSync("cargo", ["-vV"], { encoding: "utf8" }))[1];
const TARGET = at("crates", "target", which);
/** Tests that use the addon in their own process. Programs that they start take the ordinary one. */
const IN_NODE = ["client", "core", "sidecar", "vault"].map((name) => `test/${name}`);
const NOT_IN_NODE = ["kill", "overload"].map((name) => `**/*.${name}.test.ts`);

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

const cargo = (args, rest) =>
  run("cargo", ["+nightly", ...args, "--target", HOST, "--target-dir", TARGET], {
    cwd: at("crates"),
    env: { RUSTFLAGS: flags, ...env },
    timeoutMs: TIMEOUT_MS,
    ...rest,
  });

/** The core's own tests: how the run ended, and how many passed. */
async function inRust(logPath) {
  const passed = [];
  const tests = programs().flatMap((name) => ["--test", name]);
  const onLine = (line) =>
    passed.push(...(/^test result: \w+\. (\d+) passed/.exec(line) ?? []).slice(1));
  const args = ["test", "-p", "tierkv-core", "--no-fail-fast", "--lib", ...tests];
  const ran = await cargo(args, { logPath, onLine });
  return { ran, count: passed.reduce((sum, text) => sum + Number(text), 0) };
}

/** Builds the addon with the sanitizer: how that ended, and where it lies. */
async function addon() {
  const strip = ["--config", "profile.release.strip='none'"];
  const args = ["build", "-p", "tierkv-node", "--release", "--features=test-exports", ...strip];
  const built = await cargo(args, { logPath: join(LOGS, `${which}-build.log`) });
  const folder = join(TARGET, HOST, "release");
  const path = join(folder, "tierkv-core.node");
  if (built.code === 0) copyFileSync(join(folder, "libtierkv_node.so"), path);
  return { built, path };
}

/** The tests of the parts, on that addon: how the run ended, and how many passed. */
async function inNode(logPath) {
  const { built, path } = await addon();
  if (built.code !== 0) return { ran: built, count: 0 };
  // rustc links no runtime into a library: the C compiler's must be there before Node itself.
  const runtime = execFileSync("gcc", ["-print-file-name=libasan.so"], { encoding: "utf8" });
  const left = NOT_IN_NODE.flatMap((pattern) => ["--exclude", pattern]);
  const stage = vitest(`${which}-node`, TIMEOUT_MS, ["--testTimeout=180000", ...left, ...IN_NODE]);
  const ran = await run(stage.command, stage.args, {
    ...stage,
    env: {
      LD_PRELOAD: runtime.trim(),
      // V8 keeps what it allocated to the end.
      ASAN_OPTIONS: "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
      TIERKV_TEST_CORE: path,
    },
    logPath,
  });
  return { ran, count: stage.count().passed };
}

const isInNode = process.argv.includes("--node");
if (isInNode && which !== "asan") {
  say("--node is for AddressSanitizer alone: npm run test:asan -- --node");
  process.exit(2);
}
const logPath = join(LOGS, `${which}${isInNode ? "-node" : ""}.log`);
const { ran, count } = await (isInNode ? inNode : inRust)(logPath);
const isSound = ran.code === 0 && count > 0;
say(isSound ? `${which}: ${count} tests, nothing found` : `${which}: see ${logPath}`);
if (!isSound) say(ran.tail.join("\n"));
process.exitCode = isSound ? 0 : 1;
