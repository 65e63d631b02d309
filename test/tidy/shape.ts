// Owns the rules about the shape of files: first line, length, place, and that every limit is used.
import { posix } from "node:path";
import { under, type Rule, type Source } from "./sources.ts";
import { FOUNDATION, ROOMS, TEST_FOLDERS, TOP_LEVEL } from "./table.ts";

/** A longer file is a question for review from 400 lines on; here it is an error. */
const LINES_MAX = 600;
const CODE = /\.(?:ts|js|py|rs|proto|sh)$|^\.ci\/run$/;
const GENERATED = /^crates\/node\/index\./;

const isCode = ({ path }: Source): boolean => CODE.test(path) && !GENERATED.test(path);

/** How the first sentence of a file begins, by language; Python's docstrings are read in python.ts. */
const OPENINGS: Readonly<Record<string, RegExp>> = {
  ts: /^\/\/ [A-Z"'`].{20,}/,
  js: /^(?:#!.*\n)?\/\/ [A-Z"'`].{20,}/,
  rs: /^\/\/! ?\S.{20,}/,
  proto: /^\/\/ [A-Z].{20,}/,
  sh: /^#!.*\n# [A-Z].{20,}/,
};

const opening: Rule = {
  name: "every file opens with a sentence that says what it owns",
  breaches: (sources) =>
    sources.filter(isCode).flatMap(({ path, text }) => {
      const language = path === ".ci/run" ? "sh" : posix.extname(path).slice(1);
      const wanted = OPENINGS[language];
      return wanted === undefined || wanted.test(text) ? [] : [path];
    }),
  examples: [
    { "src/wire/a.ts": 'import { x } from "./b.ts";\n' },
    { "crates/core/src/a.rs": "use std::io;\n" },
    { "bin/a.js": "#!/usr/bin/env node\nimport x;\n" },
    { "proto/a.proto": 'syntax = "proto3";\n' },
    { ".ci/run": "#!/usr/bin/env bash\nset -e\n" },
  ],
};

const length: Rule = {
  name: `no file of more than ${LINES_MAX} lines`,
  breaches: (sources) =>
    sources.filter(isCode).flatMap(({ path, text }) => {
      const lines = text.trimEnd().split("\n").length;
      return lines > LINES_MAX ? [`${path} has ${lines} lines`] : [];
    }),
  examples: [{ "crates/core/src/a.rs": "x\n".repeat(LINES_MAX + 1) }],
};

const RUST_LINES = /^too-many-lines-threshold\s*=\s*(\d+)/m;
const RUST_LINES_MAX = 70;

const RUST_GOOD = {
  "crates/clippy.toml": "too-many-lines-threshold = 70\n",
  "crates/Cargo.toml": "[workspace.lints.clippy]\npedantic = 'deny'\n",
  "crates/cold/Cargo.toml": "[lints]\nworkspace = true\n",
  "crates/core/Cargo.toml": "[lints]\nworkspace = true\n",
  "crates/node/Cargo.toml": "[lints]\nworkspace = true\n",
  "crates/shm/Cargo.toml": "[lints]\nworkspace = true\n",
};

const rustLints: Rule = {
  name: "Rust is held to the same limits by clippy",
  breaches(sources) {
    const text = (path: string): string => sources.find((s) => s.path === path)?.text ?? "";
    const breaches: string[] = [];
    const threshold = Number(RUST_LINES.exec(text("crates/clippy.toml"))?.[1] ?? Infinity);
    if (threshold > RUST_LINES_MAX) {
      breaches.push(`crates/clippy.toml: too-many-lines-threshold is not ${RUST_LINES_MAX}`);
    }
    if (!/^pedantic\s*=/m.test(text("crates/Cargo.toml"))) {
      breaches.push("crates/Cargo.toml: clippy's pedantic lints are not on");
    }
    for (const member of ["cold", "core", "node", "shm"]) {
      if (!/^\[lints\]\nworkspace = true/m.test(text(`crates/${member}/Cargo.toml`))) {
        breaches.push(`crates/${member}/Cargo.toml: does not take the workspace's lints`);
      }
    }
    return breaches;
  },
  examples: [
    { ...RUST_GOOD, "crates/clippy.toml": "too-many-lines-threshold = 100\n" },
    { ...RUST_GOOD, "crates/Cargo.toml": "[workspace.lints.clippy]\nall = 'deny'\n" },
    { ...RUST_GOOD, "crates/node/Cargo.toml": "[package]\n" },
  ],
};

const topLevel: Rule = {
  name: "nothing new at the top level",
  breaches(sources) {
    const tops = new Set(sources.map(({ path }) => path.split("/")[0] ?? ""));
    return [...tops].filter((top) => !TOP_LEVEL.includes(top));
  },
  examples: [{ "notes.txt": "" }, { "lib/a.ts": "" }],
};

/**
 * Whether src has what a test is about: `retry.ts` or `retry-call.ts` for `retry.test.ts`
 * and `retry.late.test.ts`.
 */
function isMirrored(test: string, paths: readonly string[]): boolean {
  const name = posix.basename(test).split(".")[0] ?? "";
  const start = posix.join("src", posix.dirname(test).slice("test".length), name);
  return paths.some((path) => path === `${start}.ts` || path.startsWith(`${start}-`));
}

const mirror: Rule = {
  name: "tests mirror src",
  breaches(sources) {
    const known = sources.map(({ path }) => path);
    return under(sources, "test/", ".test.ts").flatMap(({ path }) => {
      const folder = path.split("/")[1] ?? "";
      const isApart = TEST_FOLDERS.includes(folder) || path === "test/tidy.test.ts";
      return isApart || isMirrored(path, known) ? [] : [`${path} is about no file of src`];
    });
  },
  examples: [
    { "test/client/retry.test.ts": "", "src/client/other.ts": "" },
    { "test/gossip/a.test.ts": "" },
  ],
};

const emptyTable: Rule = {
  name: "the import table names no room or file that is gone",
  breaches(sources) {
    const known = sources.map(({ path }) => path);
    const rooms = Object.keys(ROOMS).map((name) => `src/${name}/`);
    const files = FOUNDATION.map((name) => `src/base/${name}.ts`);
    return [...rooms, ...files].filter((start) => !known.some((path) => path.startsWith(start)));
  },
  examples: [{ "src/base/errors.ts": "" }],
};

/** Where limits are defined, how one is written, and where each must be used. */
const LIMITS: readonly { path: string; name: RegExp; used: readonly [string, string] }[] = [
  { path: "src/base/limits/", name: /^export const (\w+)/gm, used: ["src/", ".ts"] },
  {
    path: "python-shim/tierkv/connectors/vllm/limits.py",
    name: /^([A-Z]\w+)\b.*?=/gm,
    used: ["python-shim/tierkv/", ".py"],
  },
  { path: "crates/core/src/limits.rs", name: /^pub const (\w+)/gm, used: ["crates/", ".rs"] },
];

const NO_LIMITS = {
  "src/base/limits/general.ts": "",
  "python-shim/tierkv/connectors/vllm/limits.py": "",
  "crates/core/src/limits.rs": "",
};

const limits: Rule = {
  name: "every limit is used",
  breaches: (sources) =>
    LIMITS.flatMap(({ path: start, name, used }) => {
      const owners = sources.filter(({ path }) => path.startsWith(start));
      if (owners.length === 0) return [`${start} is missing`];
      return owners.flatMap((owner) => {
        const users = under(sources, ...used).filter(({ path }) => path !== owner.path);
        const names = [...owner.text.matchAll(name)].map((hit) => hit[1] ?? "");
        const isUnused = (limit: string): boolean => {
          const word = new RegExp(`\\b${limit}\\b`, "g");
          const isInOwner = (owner.text.match(word)?.length ?? 0) > 1;
          return !isInOwner && !users.some(({ text }) => text.search(word) >= 0);
        };
        return names.filter(isUnused).map((limit) => `${owner.path}: ${limit} is used nowhere`);
      });
    }),
  examples: [
    {
      ...NO_LIMITS,
      "src/base/limits/general.ts": "export const LOST_MS = 1;",
      "src/wire/a.ts": "FOUND_MS",
    },
    { ...NO_LIMITS, "python-shim/tierkv/connectors/vllm/limits.py": "LOST_MS: Final = 1\n" },
    { ...NO_LIMITS, "crates/core/src/limits.rs": "pub const LOST_MS: u64 = 1;\n" },
  ],
};

export const SHAPE_RULES: readonly Rule[] = [
  opening,
  length,
  rustLints,
  topLevel,
  mirror,
  emptyTable,
  limits,
];
