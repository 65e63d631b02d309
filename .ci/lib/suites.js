// Owns which test files there are, and the marker of each: a line `@module-tag NAME` at its top.
import { readFileSync } from "node:fs";
import { basename, dirname, relative } from "node:path";
import { ROOT } from "./paths.js";
import { filesUnder } from "./stamp.js";

/** Takes too long for every change, or is a fault that few changes touch. */
export const NIGHTLY = "nightly";
/** Measures memory, bounds a time, kills at a chosen moment, or loads both processors; nightly, a file at a time. */
export const ALONE = "alone";

const MARKER = /^\/\/!? @module-tag (\w+)$/m;
/** A marker lies in the first lines, so that a text in a test is none. */
const HEAD_BYTES = 600;
/** Of one test in a file of other tests. */
const MARKED_TEST = /\btags: \["nightly"\]/;
/** Of a file with a long form. */
const LONG_FORM = /\bprocess\.env\["TIERKV_TEST_LONG"\]/;

function read(path) {
  const text = readFileSync(path, "utf8");
  const marker = MARKER.exec(text.slice(0, HEAD_BYTES))?.[1] ?? null;
  return { path: relative(ROOT, path), marker, text };
}

/** Returns vitest's files: each with its marker, and whether a single test in it is marked or it has a long form. */
export const vitestFiles = () =>
  filesUnder(["test"])
    .filter((path) => path.endsWith(".test.ts"))
    .map(read)
    .map(({ path, marker, text }) => ({
      path,
      marker,
      hasMarked: MARKED_TEST.test(text),
      isLong: LONG_FORM.test(text),
    }));

/** Returns cargo's test targets: each with its package, name and marker. A target is a file, or a folder with main.rs. */
export function cargoTargets() {
  const tops = filesUnder(["crates"], (name) => /(?:^|\/)(?:target|fuzz)$/.test(name)).filter(
    (path) => /\/tests\/[^/]+\.rs$/.test(path) || /\/tests\/[^/]+\/main\.rs$/.test(path),
  );
  return tops.map((path) => {
    const { marker, path: name } = read(path);
    const parts = name.split("/");
    const target = basename(name) === "main.rs" ? basename(dirname(name)) : basename(name, ".rs");
    return { package: `tierkv-${parts[1]}`, name: target, marker };
  });
}

/** Returns pytest's files below a folder. Single tests are marked `pytest.mark.nightly`. */
export const pytestFiles = (folder) =>
  filesUnder([folder])
    .map((path) => relative(ROOT, path))
    .filter((path) => /\/test_\w+\.py$/.test(path));
