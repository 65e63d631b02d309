// Owns the licence texts of everything that a package carries: bundled JavaScript and compiled crates.
import { execFileSync } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { at } from "../.ci/lib/paths.js";

const LICENCE_FILE = /^(?:licen[cs]e|copying|notice)/i;
/** Platform whose crates are listed, because other platforms have the same. */
const PLATFORM = "x86_64-unknown-linux-gnu";
const METADATA_BYTES_MAX = 64 * 2 ** 20;
const RULE = `${"-".repeat(80)}\n`;

/** Returns one text: each package with its version, its licence's name, and its licence files. */
export function licences(npmPackages) {
  const parts = [...npmPackages.map(ofNpm), ...crates()];
  return parts.map(({ title, texts }) => `${RULE}${title}\n\n${texts.join("\n\n")}\n`).join("\n");
}

function ofNpm(name) {
  const folder = at("node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  return { title: `${name} ${version} (npm), ${license}`, texts: textsIn(folder) };
}

/** Returns the crates linked into the addon, without build and test dependencies. */
function crates() {
  const manifest = at("crates", "Cargo.toml");
  const format = ["metadata", "--format-version", "1", "--locked", "--filter-platform", PLATFORM];
  const args = [...format, "--manifest-path", manifest];
  const text = execFileSync("cargo", args, { encoding: "utf8", maxBuffer: METADATA_BYTES_MAX });
  const { packages, resolve } = JSON.parse(text);
  const nodes = new Map(resolve.nodes.map((node) => [node.id, node]));
  const wanted = new Set();
  const walk = (id) => {
    if (wanted.has(id)) return;
    wanted.add(id);
    for (const { pkg, dep_kinds: kinds } of nodes.get(id).deps) {
      if (kinds.some(({ kind }) => kind === null)) walk(pkg);
    }
  };
  for (const { id, name } of packages) if (name === "tierkv-node") walk(id);
  return packages
    .filter(({ id, source }) => wanted.has(id) && source !== null)
    .map(({ name, version, license, manifest_path: path }) => ({
      title: `${name} ${version} (crate), ${license}`,
      texts: textsIn(dirname(path)),
    }));
}

function textsIn(folder) {
  const files = readdirSync(folder, { withFileTypes: true });
  const found = files.filter((file) => file.isFile() && LICENCE_FILE.test(file.name));
  return found.map(({ name }) => readFileSync(join(folder, name), "utf8").trim());
}
