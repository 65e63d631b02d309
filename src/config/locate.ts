// Owns finding the line of a key in TOML source that the parser has accepted, for error messages only.

const KEY_PART = String.raw`(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')`;
const DOTTED_KEY = String.raw`${KEY_PART}(?:\s*\.\s*${KEY_PART})*`;
const HEADER = new RegExp(String.raw`^\s*\[\[?\s*(${DOTTED_KEY})\s*\]`);
const ASSIGNMENT = new RegExp(String.raw`^\s*(${DOTTED_KEY})\s*=(.*)$`);
const PARTS = new RegExp(KEY_PART, "g");
const LONG_QUOTES = ['"""', "'''"] as const;

/** The 1-based line that sets `path`, or the nearest enclosing table; null when the text has neither. */
export function lineOf(source: string, path: readonly string[]): number | null {
  let best: { line: number; depth: number } | null = null;
  for (const { line, keys } of declarations(source)) {
    const isRoundIt = keys.length <= path.length && keys.every((key, index) => key === path[index]);
    if (isRoundIt && keys.length > (best?.depth ?? 0)) best = { line, depth: keys.length };
  }
  return best?.line ?? null;
}

interface Declaration {
  line: number;
  keys: string[];
}

function* declarations(source: string): Generator<Declaration> {
  let table: string[] = [];
  let openQuote: string | null = null;
  for (const [index, text] of source.split(/\r?\n/).entries()) {
    if (openQuote !== null) {
      if (text.includes(openQuote)) openQuote = null;
      continue;
    }
    const header = HEADER.exec(text)?.[1];
    if (header !== undefined) {
      table = splitKey(header);
      yield { line: index + 1, keys: table };
      continue;
    }
    const [, key, value = ""] = ASSIGNMENT.exec(text) ?? [];
    if (key === undefined) continue;
    yield { line: index + 1, keys: [...table, ...splitKey(key)] };
    openQuote = opensLongString(value);
  }
}

function splitKey(dotted: string): string[] {
  return (dotted.match(PARTS) ?? []).map((part) => part.replace(/^(["'])(.*)\1$/s, "$2"));
}

/** The quote of a multi-line string that starts but does not end in this value. */
function opensLongString(value: string): string | null {
  const trimmed = value.trimStart();
  const quote = LONG_QUOTES.find((candidate) => trimmed.startsWith(candidate));
  return quote !== undefined && !trimmed.slice(quote.length).includes(quote) ? quote : null;
}
