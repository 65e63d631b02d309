// Owns texts in files of the checkout, with `{name}` as a placeholder for a value.
import { readFileSync } from "node:fs";
import { shipped } from "../../base/shipped.ts";

/** The text at a path in the checkout. Placeholders without a value stay. */
export function dataText(
  path: string,
  values: Readonly<Record<string, string | number | boolean>> = {},
): string {
  const text = readFileSync(shipped(path), "utf8");
  return text.replace(/\{(\w+)\}/g, (all, key: string) => String(values[key] ?? all));
}
