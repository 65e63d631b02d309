// Owns AddressSanitizer and ThreadSanitizer runs: `npm run test:asan` (the core; `-- --node`: its addon), `npm run test:tsan`. Needs nightly Rust.
import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync } from "node:fs";
import { join } from "node:path";
import { LOGS, at } from "./lib/paths.js";
import { run } from "./lib/process.js";
import { vitest } from "./lib/stages.js";

const TIMEOUT_MS = 40 * 60_000;
/** Tests that compare the process's memory with the counted bytes, because the sanitizer's own would be included. */
const LEFT_OUT = ["store_memory", "disk_full"];

/** ThreadSanitizer needs the standard library built with it, because it would take each lock inside for none. */
const SANITIZERS = {
  asan: {
    flags: "-Zsanitizer=address",
    build: [],
    env: { ASAN_OPTIONS: "detect_leaks=1:allocator_may_return_null=1" },
  },
  tsan: {
    // Through libc, because ThreadSanitizer does not see memory that raw system calls map anew.
    flags: "-Zsanitizer=thread --cfg=rustix_use_libc",
    build: ["-Zbuild-std"],
    env: {},
  },
};
const which = process.argv.includes("--threads") ? "tsan" : "asan";
const { flags, build, env } = SANITIZERS[which];
const HOST = /^host: (.+)$/m.exec(execFileSync("cargo", ["-vV"], { encoding: "utf8" }))[1];
const TARGET = at("crates", "target", which);
/** Tests that use the addon in their own process. Programs that they start use the ordinary addon. */
const IN_NODE = ["client", "core", "sidecar", "vault"].map((name) => `test/${name}`);
const NOT_IN_NODE = ["kill", "overload"].map((name) => `**/*.${name}.test.ts`);

const say = (text) => process.stdout.write(`${text}\n`);

/** Returns the names of the core's test programs, without LEFT_OUT. */
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
  run("cargo", ["+nightly", ...args, ...build, "--target", HOST, "--target-dir", TARGET], {
    cwd: at("crates"),
    env: { RUSTFLAGS: flags, ...env },
    timeoutMs: TIMEOUT_MS,
    ...rest,
  });

/** Runs the core's own tests; returns the result and the number passed. */
async function inRust(logPath) {
  const passed = [];
  const tests = programs().flatMap((name) => ["--test", name]);
  const onLine = (line) =>
    passed.push(...(/^test result: \w+\. (\d+) passed/.exec(line) ?? []).slice(1));
  const args = ["test", "-p", "tierkv-core", "--no-fail-fast", "--lib", ...tests];
  const ran = await cargo(args, { logPath, onLine });
  return { ran, count: passed.reduce((sum, text) => sum + Number(text), 0) };
}

/** Builds the addon with the sanitizer; returns the result and the addon's path. */
async function addon() {
  const strip = ["--config", "profile.release.strip='none'"];
  const args = ["build", "-p", "tierkv-node", "--release", "--features=test-exports", ...strip];
  const built = await cargo(args, { logPath: join(LOGS, `${which}-build.log`) });
  const folder = join(TARGET, HOST, "release");
  const path = join(folder, "tierkv-core.node");
  if (built.code === 0) copyFileSync(join(folder, "libtierkv_node.so"), path);
  return { built, path };
}

/** Runs the tests of the rooms on that addon; returns the result and the number passed. */
async function inNode(logPath) {
  const { built, path } = await addon();
  if (built.code !== 0) return { ran: built, count: 0 };
  // The C compiler's runtime is preloaded into Node, because rustc links none into a library.
  const runtime = execFileSync("gcc", ["-print-file-name=libasan.so"], { encoding: "utf8" });
  const left = NOT_IN_NODE.flatMap((pattern) => ["--exclude", pattern]);
  const stage = vitest(`${which}-node`, TIMEOUT_MS, ["--testTimeout=180000", ...left, ...IN_NODE]);
  const ran = await run(stage.command, stage.args, {
    ...stage,
    env: {
      LD_PRELOAD: runtime.trim(),
      // Leaks are not reported, because V8 keeps its allocations to the end.
      ASAN_OPTIONS: "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
      TIERKV_TEST_CORE: path,
    },
    logPath,
  });
  return { ran, count: stage.count().passed };
}

/** Returns whether the toolchain has the source of the standard library. */
function hasSource() {
  const root = execFileSync("rustc", ["+nightly", "--print", "sysroot"], { encoding: "utf8" });
  return existsSync(join(root.trim(), "lib", "rustlib", "src", "rust", "library"));
}

const isInNode = process.argv.includes("--node");
if (isInNode && which !== "asan") {
  say("--node is for AddressSanitizer alone: npm run test:asan -- --node");
  process.exit(2);
}
if (build.length > 0 && !hasSource()) {
  say(`${which}: skipped, because nightly Rust has no component rust-src`);
  process.exit(0);
}
const logPath = join(LOGS, `${which}${isInNode ? "-node" : ""}.log`);
const { ran, count } = await (isInNode ? inNode : inRust)(logPath);
const isSound = ran.code === 0 && count > 0;
say(isSound ? `${which}: ${count} tests, nothing found` : `${which}: see ${logPath}`);
if (!isSound) say(ran.tail.join("\n"));
process.exitCode = isSound ? 0 : 1;
