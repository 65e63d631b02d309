// Owns compiling the native core for a platform: by cargo-zigbuild, whose linker knows every libc; without what only tests call.
import { copyFileSync, existsSync } from "node:fs";
import { join } from "node:path";
import { at } from "../.ci/lib/paths.js";
import { call } from "./call.js";

const TOOLS = ["cargo-zigbuild==0.24.0", "ziglang==0.17.1", "setuptools==78.1.1"];
/** A cdylib for musl is linked with the musl of the machine that loads it. */
const MUSL_FLAGS = "-C target-feature=-crt-static";

/** The folder of a Python environment with the cross compiler; made where it is not there. */
export function compilerIn(folder) {
  const bin = join(folder, "bin");
  if (!existsSync(join(bin, "cargo-zigbuild"))) {
    call("python3", ["-m", "venv", folder]);
    call(join(bin, "pip"), ["install", "--quiet", "--disable-pip-version-check", ...TOOLS]);
  }
  return bin;
}

/** Compiles for `target` (targets.js) and writes the addon to `path`. */
export function compile(target, path, compiler) {
  const triple = target.rust.replace(/\.\d+\.\d+$/, "");
  call("rustup", ["target", "add", triple]);
  const folder = at("crates", "target", "release-packages");
  const args = ["zigbuild", "--release", "--locked", "--package", "tierkv-node"];
  const manifest = ["--manifest-path", at("crates", "Cargo.toml"), "--target-dir", folder];
  const flags = triple.endsWith("musl") ? { RUSTFLAGS: MUSL_FLAGS } : {};
  const env = { ...process.env, ...flags, PATH: `${compiler}:${process.env.PATH}` };
  call("cargo", [...args, ...manifest, "--target", target.rust], { env });
  copyFileSync(join(folder, triple, "release", "libtierkv_node.so"), path);
}
