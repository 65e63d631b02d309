// Owns setting a text or list of texts in a hand-written configuration file; comments and order stay, and uncertain edits are refused.
import { isDeepStrictEqual } from "node:util";
import { parse } from "smol-toml";
import { isTable } from "./show.ts";

const HEADER = /^\s*\[\[?[^\]]*\]\]?\s*(?:#.*)?$/;

/** The text with `name = value` in `[section]`; null when the edit would change anything else. */
export function setText(
  text: string,
  section: string,
  name: string,
  value: string | readonly string[],
): string | null {
  const before = documentOf(text);
  if (before === null) return null;
  const shown =
    typeof value === "string"
      ? JSON.stringify(value)
      : `[${value.map((one) => JSON.stringify(one)).join(", ")}]`;
  const edited = edit(text, section, name, shown);
  const after = documentOf(edited);
  const table = before[section] ?? {};
  if (after === null || !isTable(table)) return null;
  const wanted = { ...before, [section]: { ...table, [name]: value } };
  return isDeepStrictEqual(plain(after), plain(wanted)) ? edited : null;
}

function edit(text: string, section: string, name: string, shown: string): string {
  const lines = text === "" ? [] : text.replace(/\n$/, "").split("\n");
  const isHeader = new RegExp(`^\\s*\\[\\s*${section}\\s*\\]\\s*(?:#.*)?$`);
  const start = lines.findIndex((line) => isHeader.test(line));
  const setting = `${name} = ${shown}`;
  if (start < 0) {
    const gap = lines.length === 0 ? [] : [""];
    return [...lines, ...gap, `[${section}]`, setting, ""].join("\n");
  }
  const rest = lines.findIndex((line, index) => index > start && HEADER.test(line));
  const end = rest < 0 ? lines.length : rest;
  const isIt = new RegExp(
    `^(\\s*)${name}\\s*=\\s*("[^"\\\\]*"|'[^']*'|\\[[^\\]#]*\\])(\\s*(?:#.*)?)$`,
  );
  for (let index = start + 1; index < end; index += 1) {
    const [, indent, , comment] = isIt.exec(lines[index] ?? "") ?? [];
    if (indent === undefined) continue;
    lines[index] = `${indent}${setting}${comment ?? ""}`;
    return `${lines.join("\n")}\n`;
  }
  lines.splice(lastKey(lines, start, end) + 1, 0, setting);
  return `${lines.join("\n")}\n`;
}

/** The last line of a table with a key, or its header. */
function lastKey(lines: readonly string[], start: number, end: number): number {
  for (let index = end - 1; index > start; index -= 1) {
    if (!/^\s*(?:#.*)?$/.test(lines[index] ?? "")) return index;
  }
  return start;
}

function documentOf(text: string): Record<string, unknown> | null {
  try {
    return parse(text, { integersAsBigInt: true });
  } catch {
    return null;
  }
}

/** Normalises for comparison, because the parser's tables have no prototype and dates are objects. */
function plain(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(plain);
  if (value instanceof Date) return value.toISOString();
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
}
