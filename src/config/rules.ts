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

/** Only what was written can conflict; durability has a default. */
const diskHasAPlace: Rule = ({ vault: { dataDir, diskBytes, diskTtlS } }) => {
  if (dataDir !== null || (diskBytes === null && diskTtlS === null)) return null;
  const name = diskBytes === null ? "disk_ttl_s" : "disk_bytes";
  return {
    code: "CONFIG_CONFLICT",
    path: ["vault", name],
    reason: "there is no data_dir, so nothing is kept on disk",
    fix: `write data_dir = "/var/lib/tierkv", or remove ${name}`,
  };
};

const RULES: readonly Rule[] = [stallIsWithinWait, diskHasAPlace];

/** Every rule that a well-typed configuration breaks. */
export function breaches(config: Config): Breach[] {
  return RULES.map((rule) => rule(config)).filter((breach) => breach !== null);
}
