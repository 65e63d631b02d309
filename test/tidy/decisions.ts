// Owns the rules of docs/decisions: what a page begins with and has, that the table names each page, and that a named decision is there.
import { basename } from "node:path";
import { lineOf, type Rule, type Source } from "./sources.ts";

const PAGE = /^docs\/decisions\/(\d{4})-[a-z0-9-]+\.md$/;
const TABLE = "docs/decisions/README.md";
/** Number and title, then date and status. */
const HEAD = /^# (\d{4}): ([^\n]+)\n\nDate[.:] \d{4}-\d{2}-\d{2}\. Status[.:] /;
const SECTIONS = ["Context", "Decision", "Consequences"];
const NAMED = /\bdecision (\d{4})\b/gi;
const NAMED_IN_PAGES = /(?:\bdecision |\[)(\d{4})(?=[\]\s.,;)]|$)/gi;
const ROW = /^\| \[\d{4}\].*$/gm;

const GOOD =
  "# 0001: a title\n\nDate: 2026-11-29. Status: accepted.\n\n## Context\n\n## Decision\n\n## Consequences\n";
const GOOD_PATH = "docs/decisions/0001-a-title.md";

interface Page {
  path: string;
  number: string;
  /** Without marks of emphasis. */
  text: string;
}

function pagesOf(sources: readonly Source[]): Page[] {
  return sources.flatMap(({ path, text }) => {
    const number = PAGE.exec(path)?.[1];
    return number === undefined ? [] : [{ path, number, text: text.replaceAll("**", "") }];
  });
}

const form: Rule = {
  name: "a decision has its number, a date, a status, a context, a decision and consequences",
  breaches: (sources) =>
    pagesOf(sources).flatMap(({ path, number, text }) => {
      const lacks = SECTIONS.filter((name) => !new RegExp(`^(?:## )?${name}\\b`, "m").test(text));
      const missing = lacks.map((name) => `${path}: there is no section "${name}"`);
      if (HEAD.exec(text)?.[1] === number) return missing;
      const begin = `# ${number}: TITLE`;
      return [`${path}: begin with "${begin}", then "Date: YYYY-MM-DD. Status: ..."`, ...missing];
    }),
  examples: [
    { [GOOD_PATH]: GOOD.replace("0001", "0002") },
    { [GOOD_PATH]: GOOD.replace("Date: ", "") },
    { [GOOD_PATH]: GOOD.replace("## Consequences", "") },
  ],
};

const table: Rule = {
  name: `${TABLE} names each decision once, by its title`,
  breaches(sources) {
    const text = sources.find(({ path }) => path === TABLE)?.text ?? "";
    const rows = [...text.matchAll(ROW)].map(([row]) => row);
    return pagesOf(sources).flatMap(({ path, number, text: page }) => {
      const title = HEAD.exec(page)?.[2];
      const wanted = `| [${number}](${basename(path)}) | ${title} |`;
      const found = rows.filter((row) => row.startsWith(`| [${number}]`));
      return found.length === 1 && found[0] === wanted ? [] : [`${TABLE}: write one row ${wanted}`];
    });
  },
  examples: [
    { [GOOD_PATH]: GOOD, [TABLE]: "" },
    { [GOOD_PATH]: GOOD, [TABLE]: "| [0001](0001-a-title.md) | another title |\n" },
    { [GOOD_PATH]: GOOD, [TABLE]: "| [0001](0001-a-title.md) | a title |\n".repeat(2) },
  ],
};

const named: Rule = {
  name: "a decision that is named is there",
  breaches(sources) {
    const known = new Set(pagesOf(sources).map(({ number }) => number));
    return sources.flatMap(({ path, text }) => {
      if (path.startsWith("test/tidy/")) return [];
      const hits = [...text.matchAll(path.endsWith(".md") ? NAMED_IN_PAGES : NAMED)];
      const unknown = hits.filter(([, number = ""]) => !known.has(number));
      const at = ({ index }: { index: number }): string => `${path}:${lineOf(text, index)}`;
      return unknown.map((hit) => `${at(hit)}: there is no decision ${hit[1]}`);
    });
  },
  examples: [
    { "src/a.ts": "// As decision 0002 says.\n", [GOOD_PATH]: GOOD },
    { "docs/a.md": "as decided ([0002](decisions/0001-a-title.md))\n", [GOOD_PATH]: GOOD },
  ],
};

export const DECISION_RULES: readonly Rule[] = [form, table, named];
