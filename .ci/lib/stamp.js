// Owns build stamps: a hash of the inputs, kept inside the built thing, that tells whether it is current.
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { ROOT, at } from "./paths.js";

/** Returns all files under the given paths, sorted; `skip` gets paths relative to the repository root. */
export function filesUnder(paths, skip = () => false) {
  const found = [];
  const visit = (path) => {
    const name = relative(ROOT, path);
    if (skip(name) || !existsSync(path)) return;
    if (!statSync(path).isDirectory()) found.push(path);
    else for (const entry of readdirSync(path)) visit(join(path, entry));
  };
  for (const path of paths) visit(at(path));
  return found.sort();
}

/** Returns a digest of the names and bytes of files, and of further values such as tool versions. */
export function digest(files, ...values) {
  const hash = createHash("sha256");
  for (const file of files) {
    hash.update(relative(ROOT, file)).update("\0").update(readFileSync(file)).update("\0");
  }
  for (const value of values) hash.update(String(value)).update("\0");
  return hash.digest("hex");
}

export function isStamped(path, value) {
  return existsSync(path) && readFileSync(path, "utf8") === value;
}

export function stamp(path, value) {
  writeFileSync(path, value);
}
