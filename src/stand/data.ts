// Owns texts that are files in the checkout, with `{name}` where a value belongs.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

/** A path in the checkout; src and dist lie equally deep. */
export function inCheckout(path: string): string {
  return fileURLToPath(new URL(`../../${path}`, import.meta.url));
}

/** Of a path in the checkout. Names that `values` does not have stay as they are. */
export function dataText(
  path: string,
  values: Readonly<Record<string, string | number | boolean>> = {},
): string {
  const text = readFileSync(inCheckout(path), "utf8");
  return text.replace(/\{(\w+)\}/g, (all, key: string) => String(values[key] ?? all));
}
