// Owns the rule that nothing shipped makes code or objects from data: no pickle, no eval, no import of what is not named in the source.
import { lineOf, type Rule, type Source } from "./sources.ts";

interface Construct {
  what: string;
  words: RegExp;
  example: string;
}

const PYTHON: readonly Construct[] = [
  {
    what: "objects from bytes",
    words: /\b(?:import|from)\s+(?:c?[pP]ickle|cloudpickle|dill|marshal|shelve|joblib)\b/g,
    example: "import pickle\n",
  },
  {
    what: "objects from bytes",
    words: /\btorch\.(?:load|jit\.load)\(|\bnp\.load\(|\ballow_pickle\b/g,
    example: "torch.load(path)\n",
  },
  {
    what: "code from text",
    words: /(?<![\w.])(?:eval|exec|compile)\(/g,
    example: "exec(text)\n",
  },
  {
    what: "a module named by data",
    words: /\b__import__\(|\bimportlib\.import_module\(|\brunpy\b/g,
    example: "__import__(name)\n",
  },
  {
    what: "YAML with tags",
    words: /\byaml\.(?!safe_load\b)\w*load\w*\(/g,
    example: "yaml.load(x)\n",
  },
];

const SCRIPT: readonly Construct[] = [
  {
    what: "code from text",
    words: /(?<![\w.])(?:eval|Function)\(|\bnew Function\b|\brunIn(?:This|New)?Context\(/g,
    example: "eval(text);\n",
  },
  { what: "code from text", words: /["'](?:node:)?vm["']/g, example: 'import "node:vm";\n' },
  {
    what: "code from text",
    words: /\bset(?:Timeout|Interval)\(\s*["'`]/g,
    example: 'setTimeout("x()", 1);\n',
  },
  {
    what: "objects from bytes",
    // Numbers and flags of the heap are no objects from bytes.
    words:
      /\bv8\.deserialize\(|(?<!^import \{ (?:get\w+Statistics|setFlagsFromString|, )+ \} from )["'](?:node:)?v8["']/gm,
    example: "v8.deserialize(x);\n",
  },
  {
    what: "a module named by data",
    words: /\bimport\((?!\s*["'][^"']+["']\s*\))|\brequire\((?!\s*["'][^"']+["']\s*\))/g,
    example: "await import(name);\n",
  },
];

/** The program itself, one constant path away. */
const OWN_MAIN = /^const MAIN = new URL\("[^"]+", import\.meta\.url\);$/m;

/** What is shipped, by language. */
const SHIPPED: readonly { where: RegExp; constructs: readonly Construct[]; sample: string }[] = [
  { where: /^python-shim\/tierkv\/.*\.py$/, constructs: PYTHON, sample: "python-shim/tierkv/a.py" },
  { where: /^(?:src\/.*\.ts|bin\/.*\.js)$/, constructs: SCRIPT, sample: "src/wire/a.ts" },
];

function breachesOf({ path, text }: Source): string[] {
  const constructs = SHIPPED.filter(({ where }) => where.test(path)).flatMap(
    (row) => row.constructs,
  );
  return constructs.flatMap(({ what, words }) =>
    [...text.matchAll(words)]
      .filter((hit) => !(text.startsWith("import(MAIN.href)", hit.index) && OWN_MAIN.test(text)))
      .map((hit) => `${path}:${lineOf(text, hit.index)} makes ${what}: ${hit[0]}`),
  );
}

export const FORBIDDEN_RULES: readonly Rule[] = [
  {
    name: "nothing shipped makes code or objects from data",
    breaches: (sources) => sources.flatMap(breachesOf),
    examples: SHIPPED.flatMap(({ constructs, sample }) =>
      constructs.map(({ example }) => ({ [sample]: example })),
    ),
  },
];
