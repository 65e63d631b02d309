// Owns the facts about every dependency (name, version, licence, origin), read from lock files without a network.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { at } from "./paths.js";
import { filesUnder } from "./stamp.js";

/** Licences allowed in the program; build and test tools may also have TOOL_LICENCES. */
const LICENCES = new Set([
  "0BSD",
  "Apache-2.0",
  "BSD-2-Clause",
  "BSD-3-Clause",
  "BSL-1.0",
  "ISC",
  "MIT",
  "Unicode-3.0",
  "Zlib",
]);
const TOOL_LICENCES = new Set([...LICENCES, "MPL-2.0", "PSF-2.0", "Unlicense"]);
/** Packages whose install script we do not run, because nothing of ours needs it. */
const SCRIPTS_NOT_RUN = new Set(["protobufjs", "zeromq"]);
const CRATES_REGISTRY = /^(?:registry|sparse)\+/;
const METADATA_BYTES_MAX = 64 * 2 ** 20;

/** @typedef {{ ecosystem: string, name: string, version: string, licence: string, isTool: boolean, integrity?: string, hasScript?: boolean, isForeign: boolean }} Package */

/**
 * Returns the packages of package-lock.json; `isTool` marks packages that are not shipped.
 * @returns {Package[]}
 */
export function nodePackages() {
  const { packages } = JSON.parse(readFileSync(at("package-lock.json"), "utf8"));
  return Object.entries(packages)
    .filter(([path]) => path !== "")
    .map(([path, entry]) => ({
      ecosystem: "npm",
      name: path.slice(path.lastIndexOf("node_modules/") + "node_modules/".length),
      version: entry.version,
      licence: entry.license ?? "",
      isTool: entry.dev === true,
      integrity: entry.integrity ?? "",
      hasScript: entry.hasInstallScript === true,
      isForeign: entry.resolved !== undefined && !entry.resolved.startsWith("https://"),
    }));
}

/**
 * Returns the packages of crates/Cargo.lock.
 * @returns {Package[]}
 */
export function cratePackages() {
  const manifest = at("crates", "Cargo.toml");
  const args = ["metadata", "--format-version", "1", "--locked", "--manifest-path", manifest];
  const text = execFileSync("cargo", args, { encoding: "utf8", maxBuffer: METADATA_BYTES_MAX });
  return JSON.parse(text)
    .packages.filter(({ source }) => source !== null)
    .map(({ name, version, license, source }) => ({
      ecosystem: "cargo",
      name,
      version,
      licence: license ?? "",
      isTool: false,
      isForeign: !CRATES_REGISTRY.test(source),
    }));
}

const PYTHON_LOCKS = ["engine-lock.txt", "releases"];
const EXACT = /^[\w.[\]-]+==[\w.+!-]+(?:\s*;.*)?$/;

/**
 * Returns the lines of the Python lock files that do not name one exact version.
 * @returns {string[]}
 */
export function loosePins() {
  const files = PYTHON_LOCKS.flatMap((name) => filesUnder([`python-shim/${name}`]));
  return files
    .filter((file) => file.endsWith(".txt"))
    .flatMap((file) => {
      const lines = readFileSync(file, "utf8")
        .split("\n")
        .map((line) => line.trim());
      const said = lines.filter((line) => line !== "" && !line.startsWith("#"));
      return said.filter((line) => !EXACT.test(line)).map((line) => `${file}: ${line}`);
    });
}

/**
 * Returns whether an SPDX expression can be met: one side of OR, both sides of AND.
 * @param {string} expression
 * @param {ReadonlySet<string>} allowed
 * @returns {boolean}
 */
export function isAllowed(expression, allowed) {
  const plain = expression.replaceAll("/", " OR ").replace(/ WITH [\w.-]+/g, "");
  const bare = plain.replace(/\(([^()]*)\)/g, (_all, inner) =>
    isAllowed(inner, allowed) ? "MIT" : "none",
  );
  return bare
    .split(" OR ")
    .some((side) => side.split(" AND ").every((name) => allowed.has(name.trim())));
}

/**
 * Returns one line per violation of a package.
 * @param {readonly Package[]} packages
 * @returns {string[]}
 */
export function complaints(packages) {
  return packages.flatMap((found) => {
    const { ecosystem, name, version, licence, isTool } = found;
    const what = `${ecosystem} ${name} ${version}`;
    const lines = [];
    if (!isAllowed(licence, isTool ? TOOL_LICENCES : LICENCES))
      lines.push(`${what}: licence "${licence}" is not on the list`);
    if (found.isForeign) lines.push(`${what}: does not come from the registry`);
    if (ecosystem === "npm" && found.integrity === "") lines.push(`${what}: has no checksum`);
    if (found.hasScript === true && !SCRIPTS_NOT_RUN.has(name))
      lines.push(`${what}: wants to run a script when it is installed`);
    return lines;
  });
}
