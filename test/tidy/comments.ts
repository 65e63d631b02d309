// Owns the rule on the words that a comment begins with, in the source of all three languages.
import { lineOf, type Rule, type Source } from "./sources.ts";

const COVERED = /^(?:src|crates\/[^/]+\/src|python-shim\/tierkv)\/.+\.(?:ts|rs|py)$/;

const WORDS = String.raw`(?<word>What|Those|These|Whose|Who|They|Them|It|Nobody|Somebody)\b`;
/** A comment's mark and first word. The text of a block or docstring may begin on its second line. */
const SLASHES = String.raw`(?<!\S)(?<mark>\/\/[/!]?|\/\*[*!]?(?:[ \t]*\n[ \t]*\*)?)[ \t]*`;
const HASHES = String.raw`(?:(?<!\S)(?<mark>#):?[ \t]*|^[ \t]*[rR]?"""\s*)`;

const BEGINNING = new RegExp(SLASHES + WORDS, "gm");
const BEGINNING_PYTHON = new RegExp(HASHES + WORDS, "gm");

/** Whether the comment at `index` goes on from the line above: lines with one mark are one comment. */
function isContinued(text: string, index: number, mark: string): boolean {
  const [own = "", above = ""] = text.slice(0, index).split("\n").slice(-2).toReversed();
  const [begin = ""] = /^(?:\/\/[/!]?|#)/.exec(above.trimStart()) ?? [];
  return own.trim() === "" && begin !== "" && begin === mark;
}

function breachesOf({ path, text }: Source): string[] {
  const pattern = path.endsWith(".py") ? BEGINNING_PYTHON : BEGINNING;
  return [...text.matchAll(pattern)].flatMap(({ index, groups = {} }) => {
    const { mark = "", word = "" } = groups;
    if (isContinued(text, index, mark)) return [];
    const line = lineOf(text, index);
    return `${path}:${line} begins with "${word}"; HACKING.md, House rules: no comment begins with a pronoun`;
  });
}

const beginnings: Rule = {
  name: "no comment of the source begins with a pronoun",
  breaches: (sources) => sources.filter(({ path }) => COVERED.test(path)).flatMap(breachesOf),
  examples: [
    { "src/wire/a.ts": "// What a client sends.\n" },
    { "src/wire/a.ts": "const a = 1; // Those of the vault.\n" },
    { "src/wire/a.ts": "// Ends.\n\n  /** Whose key it is. */\n" },
    { "src/page/a.ts": "/**\n * They come in order.\n */\n" },
    { "crates/core/src/a.rs": "//! Owns a.\n\n/// Nobody else writes.\nfn a() {}\n" },
    { "crates/core/src/a.rs": "//! Owns a.\n// It's sealed.\n" },
    { "python-shim/tierkv/a.py": '"""These are kept."""\n' },
    { "python-shim/tierkv/a.py": 'def a():\n    r"""\n    Who calls.\n    """\n' },
    { "python-shim/tierkv/a.py": "A = 1  # Somebody asked.\n" },
    { "python-shim/tierkv/a.py": "#: Them.\n" },
  ],
};

export const COMMENT_RULES: readonly Rule[] = [beginnings];
