// Owns the running of the Rust core's measuring programs, built for release, and the parsing of their output.
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { at } from "./paths.js";

const TIMEOUT_MS = 1_200_000;
const OUTPUT_BYTES_MAX = 4_000_000;
const run = promisify(execFile);

/** Builds and runs an example of the core with `--json`; resolves to its lines, each an object. */
export async function runExample(name, args = []) {
  const cargo = ["run", "--release", "--quiet", "--package", "tierkv-core", "--example", name];
  const options = { cwd: at("crates"), timeout: TIMEOUT_MS, maxBuffer: OUTPUT_BYTES_MAX };
  const { stdout } = await run("cargo", [...cargo, "--", "--json", ...args], options);
  return stdout.trim().split("\n").map(JSON.parse);
}
