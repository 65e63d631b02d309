// Owns finding and reading the configuration file, and the environment's overrides.
import { closeSync, readFileSync, statSync } from "node:fs";
import type { Stats } from "node:fs";
import { join, resolve } from "node:path";
import { TierkvError, toTierkvError } from "../base/errors.ts";
import { CONFIG_FILE_BYTES_MAX } from "../base/limits/general.ts";
import { LOG_LEVELS } from "../base/log.ts";
import { openOwn } from "../base/own-file.ts";
import { checkConfig, NO_FILE, place } from "./check.ts";
import type { Checked } from "./check.ts";
import type { Config } from "./config.ts";
import type { Environment } from "./field.ts";
import { choice } from "./kinds.ts";
import { lineOf } from "./locate.ts";
import { homeOf } from "./own-places.ts";
import { showValue } from "./show.ts";

const FILE_NAME = "tierkv.toml";
const FIX_PATH = "give the path of a tierkv.toml";
const GROUP_WRITE_BIT = 0o020;
const WORLD_WRITE_BIT = 0o002;

/** The configuration of this process, frozen. `path` null: searched for. Throws the first mistake; see `checkFile` for all. */
export function loadConfig(path: string | null, env: Environment = process.env): Config {
  const { config, problems } = checkFile(path, env);
  if (config === null)
    throw problems[0] ?? new TierkvError("INTERNAL", { reason: "no configuration" });
  return config;
}

/** The same; where the file is not there, the defaults with its path. */
export function loadOrDefaults(path: string | null, env: Environment): Config {
  const file = findFile(path, env);
  const isThere = file === null || statSync(file, { throwIfNoEntry: false }) !== undefined;
  const { config } = isThere ? { config: null } : checkConfig("", file, env);
  return config ?? loadConfig(path, env);
}

/** Finds, reads and checks the file at `path`; null: there is none. Throws only when it cannot be read. */
export function checkFile(
  path: string | null,
  env: Environment = process.env,
): Checked & { path: string | null } {
  const file = findFile(path, env);
  const checked = checkConfig(file === null ? "" : readText(file), file, env);
  const whole = checked.config === null ? checked : withEnvironment(checked.config, env);
  return { ...whole, path: file };
}

/** `file:line` of a key, for an error about a configuration that was read. */
export function placeOf(config: Config, key: readonly [section: string, name: string]): string {
  if (config.path === null) return NO_FILE;
  return place(config.path, lineOf(readText(config.path), key));
}

/** Where a machine's services have their configuration; the last place that is searched. */
export const MACHINE_CONFIG = "/etc/tierkv/tierkv.toml";

/** Finds the configuration file: `--config`, TIERKV_CONFIG, ./tierkv.toml, ~/.config/tierkv/tierkv.toml, the machine's; null: none. */
export function findFile(path: string | null, env: Environment): string | null {
  const given = path ?? (env["TIERKV_CONFIG"] || null);
  if (given !== null) return resolve(given);
  const own = join(homeOf(env), ".config", "tierkv", FILE_NAME);
  const places = [resolve(FILE_NAME), own, MACHINE_CONFIG];
  return places.find((file) => statSync(file, { throwIfNoEntry: false }) !== undefined) ?? null;
}

function readText(file: string): string {
  const refuse = (reason: string, fix: string): never => {
    throw new TierkvError("CONFIG_UNREADABLE", { path: file, reason, fix });
  };
  try {
    const { handle, stats } = openOwn(file, (reason, fix) => refuse(reason, fix ?? FIX_PATH));
    try {
      if (isForeignWritable(stats)) {
        const shown = (stats.mode & 0o777).toString(8);
        refuse(`it has mode ${shown}, so others may write it`, `run \`chmod 644 ${file}\``);
      }
      if (stats.size > CONFIG_FILE_BYTES_MAX) {
        refuse(`${stats.size} bytes, the limit is ${CONFIG_FILE_BYTES_MAX}`, FIX_PATH);
      }
      return new TextDecoder("utf-8", { fatal: true }).decode(readFileSync(handle));
    } finally {
      closeSync(handle);
    }
  } catch (error) {
    return refuseCaught(file, error);
  }
}

/** A group with its user's own number belongs to that user alone, as many systems make it. */
function isForeignWritable({ mode, uid, gid }: Stats): boolean {
  const isPrivateGroup = uid !== 0 && gid === uid;
  return (mode & (isPrivateGroup ? WORLD_WRITE_BIT : GROUP_WRITE_BIT | WORLD_WRITE_BIT)) !== 0;
}

function refuseCaught(file: string, error: unknown): never {
  const known = toTierkvError(error);
  if (known.code === "CONFIG_UNREADABLE") throw known;
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  const [reason, fix] = {
    ENOENT: ["it does not exist", "correct the path, or leave it out to use the defaults"],
    EACCES: ["permission denied", "make it readable for this user"],
    ERR_ENCODING_INVALID_ENCODED_DATA: ["it is not UTF-8 text", "save it as UTF-8"],
  }[code] ?? [known.message, "give the path of a readable tierkv.toml"];
  throw new TierkvError(
    "CONFIG_UNREADABLE",
    { path: file, reason: String(reason), fix: String(fix) },
    { cause: error },
  );
}

function withEnvironment(config: Config, env: Environment): Checked {
  const level = env["TIERKV_LOG"] ?? "";
  if (level === "") return { config, problems: [] };
  const parsed = choice(LOG_LEVELS).parse(level, "TIERKV_LOG");
  if ("value" in parsed) {
    const log = Object.freeze({ ...config.log, level: parsed.value });
    return { config: Object.freeze({ ...config, log }), problems: [] };
  }
  const { fix } = parsed.problem;
  const reason = "reason" in parsed.problem ? parsed.problem.reason : parsed.problem.expected;
  const details = { where: "environment", key: "TIERKV_LOG", value: showValue(level), reason, fix };
  return {
    config: null,
    problems: [new TierkvError("CONFIG_BAD_VALUE", details)],
  };
}
