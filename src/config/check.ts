// Owns the check of TOML text into a Config: syntax, keys, types, rules; each mistake has file, line, key, value and fix.
import { parse, TomlError } from "smol-toml";
import { TierkvError } from "../base/errors.ts";
import type { Config } from "./config.ts";
import type { Environment, Field } from "./field.ts";
import { lineOf } from "./locate.ts";
import { nearest, simplify } from "./nearest.ts";
import { breaches } from "./rules.ts";
import { ENTRIES, SECTIONS } from "./schema.ts";
import type { Entry } from "./schema.ts";
import { isTable, showValue } from "./show.ts";

export interface Checked {
  /** null where there is a problem. */
  config: Config | null;
  problems: TierkvError[];
}

/** Stands for the file where there is none. */
export const NO_FILE = "defaults (no tierkv.toml)";

/** `file:line`, or the file alone where the line is not known. */
export function place(path: string | null, line: number | null): string {
  if (path === null) return NO_FILE;
  return line === null ? path : `${path}:${line}`;
}

/** A document with its path and text, for the checks below. */
interface Source {
  path: string | null;
  text: string;
  document: Record<string, unknown>;
}

/** Checks a whole file's text (`path` null: no file, defaults only). Reports every mistake, in the order of the file. */
export function checkConfig(text: string, path: string | null, env: Environment): Checked {
  const document = parseToml(text, path);
  if (document instanceof TierkvError) return { config: null, problems: [document] };
  const source: Source = { path, text, document: withTables(document) };
  const problems = [...unknownKeys(source)];
  const values = new Map<Entry, unknown>();
  for (const entry of ENTRIES) {
    const result = readEntry(source, entry, env);
    if (result instanceof TierkvError) problems.push(result);
    else values.set(entry, result.value);
  }
  if (problems.length > 0) return { config: null, problems: inFileOrder(problems) };
  const config = assemble(path, values);
  const broken = breaches(config).map(
    ({ path: key, reason, fix }) =>
      new TierkvError("CONFIG_CONFLICT", { ...describe(source, key), reason, fix }),
  );
  return broken.length > 0
    ? { config: null, problems: inFileOrder(broken) }
    : { config, problems: [] };
}

function parseToml(text: string, path: string | null): Record<string, unknown> | TierkvError {
  try {
    return parse(text, { integersAsBigInt: true });
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    const reason = (error.message.split("\n", 1)[0] ?? "").replace(/^Invalid TOML document: /, "");
    const line = text.split("\n")[error.line - 1] ?? "";
    return new TierkvError("CONFIG_SYNTAX", {
      where: `${path ?? NO_FILE}:${error.line}:${error.column}`,
      line: error.line,
      reason: `${reason}: ${showValue(line.trim())}`,
    });
  }
}

/** `turbo_quant = false` is short for the table with `enabled = false`. */
function withTables(document: Record<string, unknown>): Record<string, unknown> {
  const short = document["turbo_quant"];
  return typeof short === "boolean" ? { ...document, turbo_quant: { enabled: short } } : document;
}

/** `where`, `key`, `value` and `line` of a key, for an error's details. */
function describe(
  source: Source,
  path: readonly string[],
): Record<"where" | "key" | "value", string> & { line: number } {
  const [section = "", name] = path;
  const table = source.document[section];
  const value = name === undefined ? table : isTable(table) ? table[name] : undefined;
  const line = lineOf(source.text, path);
  return {
    where: place(source.path, line),
    key: name === undefined ? section : `[${section}] ${name}`,
    value: showValue(value),
    line: line ?? 0,
  };
}

function* unknownKeys(source: Source): Generator<TierkvError> {
  for (const [section, table] of Object.entries(source.document)) {
    const known = SECTIONS.find(([name]) => name === section)?.[1];
    if (known === undefined) {
      yield unknownKey(source, [section], fixForSection(section, table));
    } else if (!isTable(table)) {
      const fix = `write [${section}] on a line of its own and its keys below`;
      yield new TierkvError("CONFIG_WRONG_TYPE", {
        ...describe(source, [section]),
        expected: "a table",
        fix,
      });
    } else {
      for (const name of Object.keys(table).filter((key) => !Object.hasOwn(known.fields, key))) {
        yield unknownKey(source, [section, name], fixForKey(section, name, known.fields));
      }
    }
  }
}

function unknownKey(source: Source, path: readonly string[], fix: string): TierkvError {
  return new TierkvError("CONFIG_UNKNOWN_KEY", { ...describe(source, path), fix });
}

function fixForSection(section: string, table: unknown): string {
  const names = SECTIONS.map(([name]) => name);
  if (!isTable(table)) {
    const home = homeOf(section);
    if (home !== null) return `move it below [${home.section}] as ${home.name}`;
  }
  const guess = nearest(section, names);
  return guess === null ? `known tables: ${names.join(", ")}` : `did you mean [${guess}]?`;
}

function fixForKey(
  section: string,
  name: string,
  fields: Readonly<Record<string, Field<unknown>>>,
): string {
  const guess = nearest(name, Object.keys(fields));
  if (guess !== null) return `did you mean ${guess}?`;
  const home = homeOf(name);
  if (home !== null) return `move it below [${home.section}] as ${home.name}`;
  return `known keys of [${section}]: ${Object.keys(fields).join(", ")}`;
}

/** The table of a key that was written elsewhere, in the same words: among all keys a mistyped one has too many neighbours. */
function homeOf(name: string): Entry | null {
  const plain = simplify(name);
  return ENTRIES.find((entry) => simplify(entry.name) === plain) ?? null;
}

function readEntry(
  source: Source,
  entry: Entry,
  env: Environment,
): { value: unknown } | TierkvError {
  const { section, name, field } = entry;
  const table = source.document[section];
  const raw = isTable(table) ? table[name] : undefined;
  if (raw === undefined) return { value: field.fallback(env) };
  const parsed = field.kind.parse(raw, name);
  if ("value" in parsed) return parsed;
  const { problem } = parsed;
  const where = describe(source, [section, name]);
  return "expected" in problem
    ? new TierkvError("CONFIG_WRONG_TYPE", { ...where, ...problem })
    : new TierkvError("CONFIG_BAD_VALUE", { ...where, ...problem });
}

function inFileOrder(problems: TierkvError[]): TierkvError[] {
  return problems.sort((a, b) => Number(a.details["line"]) - Number(b.details["line"]));
}

/** The type Schema proves that the entries are exactly the values of Config. */
function assemble(path: string | null, values: ReadonlyMap<Entry, unknown>): Config {
  const config: Record<string, unknown> = { path };
  for (const [section] of SECTIONS) {
    const ours = [...values].filter(([entry]) => entry.section === section);
    config[camel(section)] = Object.fromEntries(
      ours.map(([entry, value]) => [camel(entry.name), value]),
    );
  }
  return deepFreeze(config) as unknown as Config;
}

export function camel(snake: string): string {
  return snake.replaceAll(/_(\w)/g, (_match, letter: string) => letter.toUpperCase());
}

export function deepFreeze<T extends object>(value: T): T {
  for (const item of Object.values(value)) {
    if (typeof item === "object" && item !== null) deepFreeze(item as object);
  }
  return Object.freeze(value);
}
