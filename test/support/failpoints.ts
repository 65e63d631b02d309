// Owns the reading of the failpoints that each language declares, and where each of them may stand and is driven.

export interface FailpointTable {
  /** The file that declares them. */
  path: string;
  /** One entry of its table: name and place. */
  entry: RegExp;
  /** Files in which they may stand. */
  where: RegExp;
  /** A call with a name. */
  call: RegExp;
  /** The test that goes over the whole table, and how it does. */
  driver: { path: string; over: string };
}

export const FAILPOINT_TABLES: Readonly<Record<"ts" | "python" | "rust", FailpointTable>> = {
  ts: {
    path: "src/failpoint.ts",
    entry: /^ {2}"(sidecar\.[\w.]+)":\s+"([^"]+)",$/gm,
    where: /^src\/.*\.ts$/,
    call: /\bfailpoint(?:Now)?\("([^"]+)"\)/g,
    driver: { path: "test/faults/failpoints.test.ts", over: "test.each(Object.keys(FAILPOINTS)" },
  },
  python: {
    path: "python-shim/tierkv/connectors/vllm/failpoint.py",
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

/** Name and place of each. */
export function readFailpoints({ entry }: FailpointTable, text: string): [string, string][] {
  return [...text.matchAll(entry)].map(([, name = "", where = ""]) => [name, where]);
}
