// Owns the compiling of the native core for a platform by cargo-zigbuild, without test-only functions.
import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, readdirSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { at } from "../.ci/lib/paths.js";
import { call } from "./call.js";

/** Packs wheels; its version decides their bytes. */
const PACKER = ["setuptools==78.1.1"];
const COMPILER = ["cargo-zigbuild==0.24.0", "ziglang==0.17.1", ...PACKER];
/** Checkers of finished wheels. */
const CHECKERS = ["auditwheel==6.8.2", "twine==7.0.0"];
const CRATES = join(process.env.CARGO_HOME ?? join(homedir(), ".cargo"), "registry", "src");

/** Returns flags that remap this machine's paths, because they would appear in the core's messages. */
function remapped() {
  const registries = existsSync(CRATES) ? readdirSync(CRATES) : [];
  const crates = registries.map((name) => `--remap-path-prefix=${join(CRATES, name)}=crates`);
  return [...crates, `--remap-path-prefix=${at()}=tierkv`];
}

/** A cdylib for musl links dynamically, because it must use the musl of the machine that loads it. */
const MUSL_FLAGS = ["-Ctarget-feature=-crt-static"];

/** Returns the folder of a Python environment with the cross compiler, made where absent. */
export function compilerIn(folder) {
  process.stdout.write(`compiler: ${COMPILER.join(", ")}, into ${folder} (100 MB at first)\n`);
  return environmentIn(folder, [...COMPILER, ...CHECKERS]);
}

/** Returns the folder of a Python environment that packs wheels: set-up's (`prepared`) where that is there, else one in `folder`. */
export function packerIn(folder, prepared) {
  if (existsSync(join(prepared, "python"))) return prepared;
  process.stdout.write(`packer: ${PACKER.join(", ")}, into ${folder}\n`);
  return environmentIn(folder, PACKER);
}

function environmentIn(folder, packages) {
  const bin = join(folder, "bin");
  if (!existsSync(join(bin, "pip"))) call("python3", ["-m", "venv", folder]);
  call(join(bin, "pip"), ["install", "--quiet", "--disable-pip-version-check", ...packages]);
  return bin;
}

/** Fetches Rust's standard library for a target where it is absent; the machine's own target needs no rustup. */
export function addStandardLibrary(triple) {
  const asked = ["--print", "target-libdir", "--target", triple];
  if (existsSync(execFileSync("rustc", asked, { encoding: "utf8" }).trim())) return;
  try {
    call("rustup", ["target", "add", triple]);
  } catch (error) {
    const fix = "install Rust from rustup.rs, or your system's standard library for that target";
    throw new Error(`Rust has no standard library for ${triple} (${error.message}): ${fix}`, {
      cause: error,
    });
  }
}

/** Compiles for `target` (targets.js) and writes the addon to `file`. */
export function compile(target, file, compiler) {
  const triple = target.rust.replace(/\.\d+\.\d+$/, "");
  addStandardLibrary(triple);
  const folder = at("crates", "target", "release-packages");
  const args = ["zigbuild", "--release", "--locked", "--package", "tierkv-node"];
  const manifest = ["--manifest-path", at("crates", "Cargo.toml"), "--target-dir", folder];
  const flags = [...remapped(), ...(triple.endsWith("musl") ? MUSL_FLAGS : [])];
  const path = `${compiler}:${process.env.PATH}`;
  const env = { ...process.env, CARGO_ENCODED_RUSTFLAGS: flags.join("\x1f"), PATH: path };
  call("cargo", [...args, ...manifest, "--target", target.rust], { env });
  const library = triple.endsWith("darwin") ? "libtierkv_node.dylib" : "libtierkv_node.so";
  copyFileSync(join(folder, triple, "release", library), file);
}
