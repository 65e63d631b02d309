// Owns texts in files of the checkout, with `{name}` as a placeholder for a value.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

/** A path in the checkout; src and dist lie equally deep. */
export function inCheckout(path: string): string {
  return fileURLToPath(new URL(`../../../${path}`, import.meta.url));
}

/** The text at a path in the checkout. Placeholders without a value stay. */
export function dataText(
  path: string,
  values: Readonly<Record<string, string | number | boolean>> = {},
): string {
  const text = readFileSync(inCheckout(path), "utf8");
  return text.replace(/\{(\w+)\}/g, (all, key: string) => String(values[key] ?? all));
}
