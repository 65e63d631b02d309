// Owns the rules between keys; each names the key to change and how.
import type { Config } from "./config.ts";

export interface Breach {
  code: "CONFIG_CONFLICT";
  path: readonly [section: string, name: string];
  reason: string;
  fix: string;
}

type Rule = (config: Config) => Breach | null;

const stallIsWithinWait: Rule = ({ restore: { waitMs, stallMs } }) =>
  stallMs > waitMs
    ? {
        code: "CONFIG_CONFLICT",
        path: ["restore", "stall_ms"],
        reason: `longer than wait_ms = ${waitMs}, so it could never take effect`,
        fix: `write stall_ms = ${waitMs} or less`,
      }
    : null;

const RULES: readonly Rule[] = [stallIsWithinWait];

/** Every rule that a well-typed configuration breaks. */
export function breaches(config: Config): Breach[] {
  return RULES.map((rule) => rule(config)).filter((breach) => breach !== null);
}
