// Owns the codecs' tests as ARM code under qemu, to compare NEON's bytes with other instruction sets; skips without qemu.
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { compilerIn } from "../packaging/addon.js";
import { at } from "./lib/paths.js";

const TARGET = "aarch64-unknown-linux-musl";
const TESTS = ["int8", "lossless", "generated", "vectors"];
/** Debian: qemu-user-static. */
const QEMUS = ["qemu-aarch64-static", "qemu-aarch64"];

const works = (name) => spawnSync(name, ["--version"], { stdio: "ignore" }).status === 0;

function run(command, args, env = {}) {
  const options = { cwd: at("crates"), stdio: "inherit", env: { ...process.env, ...env } };
  return spawnSync(command, args, options).status ?? 1;
}

function test(qemu) {
  const tools = compilerIn(at("crates", "target", "neon-tools"));
  const added = run("rustup", ["target", "add", TARGET]);
  if (added !== 0) return added;
  const tests = TESTS.flatMap((name) => ["--test", name]);
  return run(
    join(tools, "cargo-zigbuild"),
    ["test", "--target", TARGET, "-p", "tierkv-core", ...tests],
    {
      PATH: `${tools}:${process.env.PATH}`,
      CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER: qemu,
      CARGO_PROFILE_DEV_DEBUG: "0",
    },
  );
}

const qemu = QEMUS.find(works);
if (qemu === undefined) process.stdout.write("neon: skipped, because there is no qemu-aarch64\n");
else process.exitCode = test(qemu);
