// Owns values of the command line that override the file's: each is checked like its key.
import { TierkvError } from "../base/errors.ts";
import { camel, deepFreeze } from "./check.ts";
import type { Config } from "./config.ts";
import type { Kind, Parsed } from "./kinds.ts";
import { breaches } from "./rules.ts";
import { ENTRIES } from "./schema.ts";
import type { Entry } from "./schema.ts";
import { showValue } from "./show.ts";

/** One option that was given, for example `--max-bytes 1GiB` for `[vault] max_bytes`. */
export interface Override {
  /** Option as typed: `--max-bytes`. */
  option: string;
  section: string;
  name: string;
  /** undefined: not given. */
  text: string | undefined;
}

/** The configuration with these values, frozen. Throws CONFIG_BAD_VALUE naming the option. */
export function override(config: Config, overrides: readonly Override[]): Config {
  const changed = structuredClone(config) as unknown as Record<string, Record<string, unknown>>;
  for (const { option, section, name, text } of overrides) {
    if (text === undefined) continue;
    const values = changed[camel(section)] ?? {};
    values[camel(name)] = parseOption(entry(section, name).field.kind, option, text);
  }
  const result = deepFreeze(changed) as unknown as Config;
  const [breach] = breaches(result);
  if (breach === undefined) return result;
  const [section, name] = breach.path;
  const own = overrides.find((one) => one.section === section && one.name === name);
  if (own?.text !== undefined) {
    const fix = breach.fix.replaceAll(`write ${name} = `, `write ${own.option} `);
    throw refused(own.option, showValue(own.text), breach.reason, fix);
  }
  throw refused(`[${section}] ${name}`, "as the command line has it", breach.reason, breach.fix);
}

/** The value of an option without a key. Throws CONFIG_BAD_VALUE naming it. */
export function parseOption<T>(kind: Kind<T>, option: string, text: string): T {
  const parsed = parseText(kind, option, text);
  if ("value" in parsed) return parsed.value;
  const { problem } = parsed;
  const reason = "reason" in problem ? problem.reason : `expected ${problem.expected}`;
  const fix = problem.fix.replaceAll(`${option} = `, `${option} `);
  throw refused(option, showValue(text), reason, fix);
}

/** The same for an optional one. */
export function optionOr<T, Otherwise>(
  kind: Kind<T>,
  option: string,
  text: string | undefined,
  otherwise: Otherwise,
): T | Otherwise {
  return text === undefined ? otherwise : parseOption(kind, option, text);
}

/** TOML distinguishes numbers from texts by quotes; an option takes the type that fits its key. */
function parseText<T>(kind: Kind<T>, option: string, text: string): Parsed<T> {
  const asText = kind.parse(text, option);
  if ("value" in asText) return asText;
  if (text === "true" || text === "false") {
    const asSwitch = kind.parse(text === "true", option);
    if ("value" in asSwitch) return asSwitch;
  }
  if (!/^\d[\d_]*$/.test(text)) return asText;
  const asNumber = kind.parse(BigInt(text.replaceAll("_", "")), option);
  const isWrongType = "problem" in asNumber && "expected" in asNumber.problem;
  return isWrongType ? asText : asNumber;
}

/** The value of a word of the command line that is written into the file; `name`: what the word is. Throws CONFIG_BAD_VALUE. */
export function checkWord(section: string, key: string, name: string, text: string): void {
  parseOption(entry(section, key).field.kind, name, text);
}

/** A mistake of the file that only the command line would make, so that no line of the file has it. */
export function asTyped({ code, details }: TierkvError): TierkvError {
  const { line: _none, ...kept } = details;
  return new TierkvError(code, { ...kept, where: COMMAND_LINE } as never);
}

const COMMAND_LINE = "command line";

function entry(section: string, name: string): Entry {
  const found = ENTRIES.find((known) => known.section === section && known.name === name);
  if (found !== undefined) return found;
  throw new TierkvError("INTERNAL", { reason: `no key [${section}] ${name}` });
}

function refused(key: string, value: string, reason: string, fix: string): TierkvError {
  return new TierkvError("CONFIG_BAD_VALUE", { where: COMMAND_LINE, key, value, reason, fix });
}
