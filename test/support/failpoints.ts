// Owns the reading of each language's failpoints, and the rules where they may stand and which test drives them.

export interface FailpointTable {
  /** File of the table. */
  path: string;
  /** Matches one entry of the table: name and place. */
  entry: RegExp;
  /** Files that may contain failpoints. */
  where: RegExp;
  /** Matches a call with a name. */
  call: RegExp;
  /** Test that drives the whole table, and the text that shows it does. */
  driver: { path: string; over: string };
}

export const FAILPOINT_TABLES: Readonly<Record<"ts" | "python" | "rust", FailpointTable>> = {
  ts: {
    path: "src/base/failpoint.ts",
    entry: /^ {2}"(sidecar\.[\w.]+)":\s+"([^"]+)",$/gm,
    where: /^src\/.*\.ts$/,
    call: /\bfailpoint(?:Now)?\("([^"]+)"\)/g,
    driver: { path: "test/faults/failpoints.test.ts", over: "test.each(Object.keys(FAILPOINTS)" },
  },
  python: {
    path: "python-shim/tierkv/connectors/vllm/link/failpoint.py",
    entry: /^ {4}"(shim\.[\w.]+)": "([^"]+)",$/gm,
    where: /^python-shim\/tierkv\/.*\.py$/,
    call: /\bfailpoint\.fails\("([^"]+)"\)/g,
    driver: {
      path: "python-shim/tests/test_failpoints.py",
      over: "set(STEPS) == set(failpoint.FAILPOINTS)",
    },
  },
  rust: {
    path: "crates/core/src/failpoint.rs",
    entry: /^ {4}\("((?:lane|reassembly|disk)\.[\w.]+)", "([^"]+)"\),$/gm,
    where: /^crates\/core\/src\/.*\.rs$/,
    call: /\bfailpoint\("([^"]+)"\)/g,
    driver: { path: "crates/core/tests/lanes/failpoints.rs", over: "for (point, _) in FAILPOINTS" },
  },
};

/** Returns name and place of each failpoint. */
export function readFailpoints({ entry }: FailpointTable, text: string): [string, string][] {
  return [...text.matchAll(entry)].map(([, name = "", where = ""]) => [name, where]);
}
