// Owns the version of this release, from package.json, which lies as far above src as above dist.
import { readFileSync } from "node:fs";
import { shipped } from "./shipped.ts";

/** Defined by packaging/bundle.js, because bundled files lie elsewhere. */
declare const TIERKV_VERSION: string | undefined;

export function packageVersion(): string {
  if (typeof TIERKV_VERSION === "string") return TIERKV_VERSION;
  const text = readFileSync(shipped("package.json"), "utf8");
  return (JSON.parse(text) as { version: string }).version;
}
