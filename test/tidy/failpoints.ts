// Owns the rule that every failpoint stands in the code once, and is driven by the test that goes over its table.
import { FAILPOINT_TABLES, readFailpoints } from "../support/failpoints.ts";
import type { FailpointTable } from "../support/failpoints.ts";
import type { Rule, Source } from "./sources.ts";

function breachesOf(table: FailpointTable, sources: readonly Source[]): string[] {
  const declaring = sources.find(({ path }) => path === table.path);
  if (declaring === undefined) return [];
  const declared = readFailpoints(table, declaring.text).map(([name]) => name);
  const placed = sources
    .filter(({ path }) => table.where.test(path) && path !== table.path)
    .flatMap(({ text }) => [...text.matchAll(table.call)].map(([, name = ""]) => name));
  const driver = sources.find(({ path }) => path === table.driver.path)?.text ?? "";
  return [
    ...(declared.length === 0 ? [`${table.path} declares none that can be read`] : []),
    ...declared
      .filter((name) => placed.filter((other) => other === name).length !== 1)
      .map((name) => `${name} does not stand in the code exactly once`),
    ...placed
      .filter((name) => !declared.includes(name))
      .map((name) => `${name} is in no table: ${table.path}`),
    ...(driver.includes(table.driver.over)
      ? []
      : [`${table.driver.path} does not go over the table of ${table.path}`]),
  ];
}

const SAMPLE = "src/base/failpoint.ts";
const DRIVER = "test/faults/failpoints.test.ts";

export const FAILPOINT_RULES: readonly Rule[] = [
  {
    name: "every failpoint stands in the code once and is driven",
    breaches: (sources) =>
      Object.values(FAILPOINT_TABLES).flatMap((table) => breachesOf(table, sources)),
    examples: [
      {
        [SAMPLE]: '  "sidecar.a": "here",\n',
        [DRIVER]: "test.each(Object.keys(FAILPOINTS)",
      },
      {
        [SAMPLE]: '  "sidecar.a": "here",\n',
        "src/sidecar/a.ts": 'await failpoint("sidecar.a");\nawait failpoint("sidecar.b");\n',
        [DRIVER]: "test.each(Object.keys(FAILPOINTS)",
      },
      {
        [SAMPLE]: '  "sidecar.a": "here",\n',
        "src/sidecar/a.ts": 'await failpoint("sidecar.a");\n',
      },
      { [SAMPLE]: "nothing", [DRIVER]: "test.each(Object.keys(FAILPOINTS)" },
    ],
  },
];
