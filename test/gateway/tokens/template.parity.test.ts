// Owns the proof that templates show, join and compare values as Jinja2 does in Python, or leave the chat to the engine.
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { FUNCTIONS, templateOf } from "../../../src/gateway/tokens/template.ts";

const PYTHON = fileURLToPath(new URL("../../../.venv/bin/python", import.meta.url));
/** Renders each source with the settings of transformers' chat templates. */
const RENDER = `
import json, sys
from jinja2.sandbox import ImmutableSandboxedEnvironment
env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
given = json.load(sys.stdin)
json.dump([env.from_string(source).render(**given["values"]) for source in given["sources"]], sys.stdout)
`;

const VALUES = {
  yes: true,
  nothing: null,
  list: ["a", "b"],
  map: { additionalProperties: false },
  word: "1",
};

/** What the two libraries do alike once rewritten, by the kind of value that is shown, joined or compared. */
const SAME = [
  "{{ yes }}{{ nothing }}{{ undefined_one }}|{{ 3 }}",
  "{% for key in map %}<{{ key }}>{{ map[key] | string }}</{{ key }}>{% endfor %}",
  "{% if yes %}{{ yes }}{% else %}{{ nothing }}{% endif %}{% for i in [] %}{% else %}{{ nothing }}{% endfor %}",
  "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(yes) }}{% set x %}{{ nothing }}{% endset %}[{{ x }}]",
  "{{ 'a' ~ yes ~ 1 }}",
  "{{ word == 1 }}{{ word == '1' }}{{ word != 1 }}{{ 1 == 1.0 }}{{ true == 1 }}{{ '' == false }}",
  "{{ undefined_one == 'a' }}{{ nothing == false }}{{ nothing != '' }}{{ nothing is none }}{{ undefined_one is defined }}",
  "{{ -7 % 3 }}{{ 7 % -3 }}{{ 6 % 3 }}{{ '😀a' | length }}{{ list | length }}{{ map | length }}{{ '' | length > 0 }}",
  "{{ word is string }}{{ yes is boolean }}{{ 'a' in list }}{{ not yes }}",
  "{{ 'x' if yes }}{{ 'x' if not yes }}|{{ (yes and word) }}{{ list | join('-') }}",
];

/** What neither renders alike nor is rewritten: the chat is the engine's. */
const REFUSED = [
  "{{ list }}",
  "{{ map }}",
  "{{ 'a' ~ list }}",
  "{{ list | string }}",
  "{{ list == ['a', 'b'] }}",
  "{{ map != map }}",
  "{{ 1.5 }}{{ 0.1 + 0.2 }}",
  "{{ 7 % 0 }}",
  "{{ nothing | length }}",
  "{{ 'a' ~ nothing }}",
  "{{ 'a' ~ undefined_one }}",
  "{{ nothing | string }}",
  "{{ undefined_one == nothing }}",
];

test("values are shown, joined and compared as in Python", () => {
  const input = JSON.stringify({ values: VALUES, sources: SAME });
  const expected: unknown = JSON.parse(
    execFileSync(PYTHON, ["-c", RENDER], { input, encoding: "utf8" }),
  );
  const rendered = SAME.map((source) => templateOf(source).render({ ...VALUES, ...FUNCTIONS }));
  expect(rendered).toEqual(expected);
});

test.each(REFUSED)("%s is not rendered here", (source) => {
  expect(() => templateOf(source).render({ ...VALUES, ...FUNCTIONS })).toThrow();
});
