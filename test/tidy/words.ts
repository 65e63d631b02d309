// Owns the words that must not occur, each with the places it is banned from and the reason.
import { lineOf, type Rule, type Source } from "./sources.ts";

interface Ban {
  why: string;
  words: RegExp;
  /** Paths the ban covers. */
  where: RegExp;
  except?: RegExp;
  example: Readonly<Record<string, string>>;
}

const ANYWHERE = /^/;
/** These files must spell out what they forbid. */
const OURSELVES = /^test\/tidy\//;

const BANS: readonly Ban[] = [
  {
    why: "unfinished work",
    words: /\b(?:TODO|FIXME|XXX|HACK)\b|\b(?:todo|unimplemented)!\(/g,
    where: ANYWHERE,
    except: /^package-lock\.json$/,
    example: { "docs/a.md": "TODO: say more" },
  },
  {
    why: "the host of a package registry",
    words:
      /registry\.npmjs\.org|registry\.yarnpkg\.com|\bpypi\.org|pythonhosted\.org|(?:index|static)\.crates\.io|proxy\.golang\.org|download\.pytorch\.org/g,
    where: ANYWHERE,
    example: { "package-lock.json": '"resolved": "https://registry.npmjs.org/pino"' },
  },
  {
    why: "a path of one machine",
    words: /(?<![\w.$}])\/(?:work|root|tmp\/tk)\//g,
    where: ANYWHERE,
    example: { "docs/a.md": "see /work/shared/design.md" },
  },
  {
    why: "how work is organised, which is no concern of the code",
    words: /\bissue #?\d+|\b(?:sub-?agent|AI agent|coding agent)s?\b/gi,
    where: ANYWHERE,
    example: { "src/wire/a.ts": "// As issue 7 asks." },
  },
  {
    // The exception turns such an address, which a user wrote, into the one to reach it by.
    why: "an address that listens to everybody",
    words: /["']0\.0\.0\.0\b/g,
    where: /^(?:src|bin|proto|crates|python-shim\/tierkv)\/|^tierkv\.toml\.example$/,
    except: /^src\/cluster\/targets\.ts$/,
    example: { "src/config/schema.ts": 'listen: "0.0.0.0:50051"' },
  },
  {
    why: "a clock or dice outside time.ts",
    words: /\bDate\.now\(|\bnew Date\(\)|\bperformance\.now\(|\bhrtime\b|\bMath\.random\(/g,
    where: /^src\//,
    except: /^src\/base\/time\.ts$/,
    example: { "src/client/a.ts": "const t = Date.now();" },
  },
  {
    why: "a lint switched off without a reason",
    words: /(?:oxlint|eslint)-disable(?:-next-line|-line)?(?![^\n]* -- \S)|@ts-(?:ignore|nocheck)/g,
    where: /\.[jt]s$/,
    except: /^crates\/node\/index\./,
    example: { "src/wire/a.ts": "// oxlint-disable-next-line no-console\n" },
  },
];

function ban({ why, words, where, except, example }: Ban): Rule {
  const covers = ({ path }: Source): boolean =>
    where.test(path) && !OURSELVES.test(path) && except?.test(path) !== true;
  return {
    name: `nowhere: ${why}`,
    breaches: (sources) =>
      sources.filter(covers).flatMap(({ path, text }) => {
        const hits = [...text.matchAll(words)];
        return hits.map((hit) => `${path}:${lineOf(text, hit.index)} has "${hit[0]}"`);
      }),
    examples: [example],
  };
}

export const WORD_RULES: readonly Rule[] = BANS.map(ban);
