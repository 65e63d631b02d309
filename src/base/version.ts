// Owns the version of this release, from package.json, which lies as far above src as above dist.
import { readFileSync } from "node:fs";

/** Defined by packaging/bundle.js, because bundled files lie elsewhere. */
declare const TIERKV_VERSION: string | undefined;

export function packageVersion(): string {
  if (typeof TIERKV_VERSION === "string") return TIERKV_VERSION;
  const text = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
  return (JSON.parse(text) as { version: string }).version;
}
