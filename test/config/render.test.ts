// Owns the proof that tierkv.toml.example and docs/config.md are what the schema says, and that the example works.
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { checkConfig } from "../../src/config/check.ts";
import { renderDocs, renderExample } from "../../src/config/render.ts";
import { ENTRIES } from "../../src/config/schema.ts";

const read = (path: string): string =>
  readFileSync(new URL(`../../${path}`, import.meta.url), "utf8");

test("tierkv.toml.example is current: `node bin/tierkv.js config example > tierkv.toml.example`", () => {
  expect(read("tierkv.toml.example")).toBe(renderExample());
});

test("docs/config.md is current: `node bin/tierkv.js config docs > docs/config.md`", () => {
  expect(read("docs/config.md")).toBe(renderDocs());
});

test("the example is a good configuration, and stores blocks as no configuration does", () => {
  const { config, problems } = checkConfig(renderExample(), "e.toml", {});
  expect(problems).toEqual([]);
  expect([config?.turboQuant.enabled, config?.codec.kv]).toEqual([null, "auto"]);
});

test("every setting of the example is good when its comment mark is taken away", () => {
  const names = ENTRIES.map(({ name }) => name).join("|");
  const all = renderExample().replaceAll(new RegExp(`^# ((?:${names}) = )`, "gm"), "$1");
  const { config, problems } = checkConfig(all, "e.toml", {});
  expect(problems.map(({ message }) => message)).toEqual([]);
  expect(all.match(new RegExp(`^(?:${names}) = `, "gm"))).toHaveLength(ENTRIES.length);
  expect(config?.sidecar.arenaDir).toBe("/dev/shm/tierkv");
});
