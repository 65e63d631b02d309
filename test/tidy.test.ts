// Owns the proof that the house rules hold, and that each of them notices a breach.
import { describe, expect, test } from "vitest";
import { COMMENT_RULES } from "./tidy/comments.ts";
import { DECISION_RULES } from "./tidy/decisions.ts";
import { DOC_RULES } from "./tidy/docs.ts";
import { FAILPOINT_RULES } from "./tidy/failpoints.ts";
import { FAULT_RULES } from "./tidy/faults.ts";
import { FORBIDDEN_RULES } from "./tidy/forbidden.ts";
import { IMPORT_RULES } from "./tidy/imports.ts";
import { PYTHON_RULES } from "./tidy/python.ts";
import { SHAPE_RULES } from "./tidy/shape.ts";
import { fromExample, readSources } from "./tidy/sources.ts";
import { WORD_RULES } from "./tidy/words.ts";

const RULES = [
  ...IMPORT_RULES,
  ...SHAPE_RULES,
  ...WORD_RULES,
  ...COMMENT_RULES,
  ...PYTHON_RULES,
  ...DOC_RULES,
  ...DECISION_RULES,
  ...FORBIDDEN_RULES,
  ...FAULT_RULES,
  ...FAILPOINT_RULES,
];
const SOURCES = readSources();

test("the repository was read", () => {
  const paths = SOURCES.map(({ path }) => path);
  expect(paths).toContain("src/base/limits/general.ts");
  expect(paths).toContain("python-shim/pyproject.toml");
  expect(paths).toContain("crates/core/src/lib.rs");
});

describe.each(RULES.map((rule) => [rule.name, rule] as const))("%s", (_name, rule) => {
  test("holds", () => {
    expect(rule.breaches(SOURCES).join("\n")).toBe("");
  });

  test("is noticed when broken", () => {
    for (const example of rule.examples) {
      expect(rule.breaches(fromExample(example)), JSON.stringify(example)).not.toHaveLength(0);
    }
  });
});
