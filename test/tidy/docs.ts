// Owns the rule that links in the documentation lead somewhere.
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

export const DOC_RULES: readonly Rule[] = [links];
