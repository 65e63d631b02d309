// Owns the rules that what the documentation names is there: where links lead, files, and the tests behind the claims of SECURITY.md.
import { posix } from "node:path";
import type { Rule } from "./sources.ts";

const LINK = /\[[^\]]*\]\(([^)\s]+)\)/g;
const FENCED = /^(```|~~~)[\s\S]*?^\1/gm;
const INLINE_CODE = /`[^`\n]*`/g;

/** The anchor a heading gets when Markdown is shown on the web. */
function anchor(heading: string): string {
  const words = heading
    .trim()
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, "");
  return words.replace(/\s/g, "-");
}

const links: Rule = {
  name: "every link in the documentation resolves",
  breaches(sources) {
    const known = new Map(sources.map(({ path, text }) => [path, text]));
    const isFolder = (path: string): boolean =>
      [...known.keys()].some((k) => k.startsWith(`${path}/`));
    const leads = (from: string, link: string): boolean => {
      const [file, fragment] = link.split("#");
      const target = file === "" ? from : posix.join(posix.dirname(from), file ?? "");
      const text = known.get(target);
      if (text === undefined) return fragment === undefined && isFolder(target.replace(/\/$/, ""));
      if (fragment === undefined) return true;
      const headings = [...text.matchAll(/^#+\s+(.*)$/gm)].map((hit) => anchor(hit[1] ?? ""));
      return headings.includes(fragment);
    };
    const pages = sources.filter(({ path }) => path.endsWith(".md"));
    return pages.flatMap(({ path, text }) => {
      const prose = text.replace(FENCED, "").replace(INLINE_CODE, "");
      const found = [...prose.matchAll(LINK)].map((hit) => hit[1] ?? "");
      const local = found.filter((link) => !/^[a-z]+:/.test(link));
      return local.filter((link) => !leads(path, link)).map((link) => `${path}: ${link}`);
    });
  },
  examples: [
    { "docs/a.md": "see [b](b.md)" },
    { "docs/a.md": "see [b](b.md#there)", "docs/b.md": "# Here\n" },
    { "README.md": "# A title\n[x](#another)" },
  ],
};

/** A row of a table whose last cell names tests: `path` "title", any number of them. */
const CLAIM = /^\|[^|\n]*\|([^|\n]*)\|([^|\n]*)\|$/gm;
const PROOF = /`([^`]+)` "([^"]+)"/g;
const PROVEN = "SECURITY.md";
const HEADING = "What is protected";

const claims: Rule = {
  name: `every claim of ${PROVEN} names tests that are there`,
  breaches(sources) {
    const known = new Map(sources.map(({ path, text }) => [path, text]));
    const parts = (known.get(PROVEN) ?? "").split(/^## /m);
    const section = parts.find((part) => part.startsWith(HEADING)) ?? "";
    const rows = [...section.matchAll(CLAIM)].slice(2);
    return rows.flatMap(([row, , cell = ""]) => {
      const proofs = [...cell.matchAll(PROOF)];
      if (proofs.length === 0) return [`${PROVEN}: no test is named: ${row.slice(0, 100)}`];
      return proofs
        .filter(([, path = "", title = ""]) => known.get(path)?.includes(title) !== true)
        .map(([, path, title]) => `${PROVEN}: there is no "${title}" in ${path}`);
    });
  },
  examples: [
    { "SECURITY.md": `## ${HEADING}\n\n|a|b|c|\n|-|-|-|\n|he|a claim|a test|\n` },
    { "SECURITY.md": `## ${HEADING}\n\n|a|b|c|\n|-|-|-|\n|he|it|\`test/a.ts\` "gone"|\n` },
  ],
};

const CASES = "docs/gateway-clients.md";
/** A test's file, once for all titles behind it in the cell. */
const CASE = /`(test\/[\w./-]+)`|"([^"]+)"/g;

const cases: Rule = {
  name: `tests that ${CASES} names are there`,
  breaches(sources) {
    const known = new Map(sources.map(({ path, text }) => [path, text]));
    const rows = (known.get(CASES) ?? "").split("\n").filter((line) => line.startsWith("|"));
    return rows.flatMap((row) => {
      let file = "";
      const missing: string[] = [];
      for (const [, path, title] of row.matchAll(CASE)) {
        if (path !== undefined) file = path;
        else if (title !== undefined && known.get(file)?.includes(title) !== true)
          missing.push(`${CASES}: there is no "${title}" in ${file}`);
      }
      return missing;
    });
  },
  examples: [{ [CASES]: '| 1 | a finding | it holds: `test/a.ts` "gone" |\n' }],
};

const FOUND = "docs/architecture.md";
const FOUND_HEADING = "Layout";
/** A file or folder; without a slash it lies beside the file, or in the folder, that was named before it. */
const PLACE = /`([\w./-]+(?:\.(?:ts|py|rs|md|proto)|\/))`/g;

const places: Rule = {
  name: `what ${FOUND} names is there`,
  breaches(sources) {
    const known = new Set(sources.map(({ path }) => path));
    const text = sources.find(({ path }) => path === FOUND)?.text ?? "";
    const section = text.split(/^## /m).find((part) => part.startsWith(FOUND_HEADING)) ?? "";
    const isThere = (path: string): boolean =>
      path.includes("NAME") ||
      known.has(path) ||
      (path.endsWith("/") && [...known].some((one) => one.startsWith(path)));
    return section.split("\n").flatMap((row) => {
      let folder = "";
      const named = [...row.matchAll(PLACE)].map(([, place = ""]) => {
        const path = place.replace(/\/$/, "").includes("/") ? place : folder + place;
        folder = path.endsWith("/") ? path : `${posix.dirname(path)}/`;
        return path;
      });
      return named.filter((path) => !isThere(path)).map((path) => `${FOUND}: ${path} is not there`);
    });
  },
  examples: [
    { [FOUND]: `## ${FOUND_HEADING}\n\n| a | \`src/a.ts\` |\n` },
    {
      [FOUND]: `## ${FOUND_HEADING}\n\n| a | \`src/a.ts\`, \`b.ts\` |\n`,
      "src/a.ts": "",
      "b.ts": "",
    },
  ],
};

export const DOC_RULES: readonly Rule[] = [links, claims, cases, places];
