// Owns chat templates rendered as in Python: where the renderer differs, templates call functions of ours.
import { Template } from "@huggingface/jinja";

type Strip = (text: unknown, characters?: unknown) => string;

/** String methods whose argument the renderer ignores, by their names in templates. */
const METHODS: ReadonlyMap<string, Strip> = new Map([
  ["strip", strip(true, true)],
  ["lstrip", strip(true, false)],
  ["rstrip", strip(false, true)],
]);
const PREFIX = "tierkv_";
export const FUNCTIONS: Readonly<Record<string, Strip>> = Object.fromEntries(
  [...METHODS].map(([name, method]) => [PREFIX + name, method]),
);

/** Throws where the source is no template. */
export function templateOf(source: string): Template {
  const template = new Template(source);
  rewrite(template.parsed);
  return template;
}

interface Node {
  type?: unknown;
  callee?: Node;
  object?: Node;
  property?: Node;
  computed?: boolean;
  value?: unknown;
  args?: unknown[];
}

/** `text.strip(characters)` becomes `tierkv_strip(text, characters)`. */
function rewrite(part: unknown): void {
  if (typeof part !== "object" || part === null) return;
  for (const inner of part instanceof Map ? part.values() : Object.values(part)) rewrite(inner);
  const { type, callee, args } = part as Node;
  if (type !== "CallExpression" || callee?.type !== "MemberExpression") return;
  const { object, property, computed } = callee;
  const name = String(property?.value);
  if (computed === true || args === undefined || !METHODS.has(name)) return;
  args.unshift(object);
  (part as Node).callee = { type: "Identifier", value: PREFIX + name };
}

/** Strips as Python does: all characters of a set, from the ends named. */
function strip(isLeft: boolean, isRight: boolean): Strip {
  return (text, characters = null) => {
    if (typeof text !== "string") throw new TypeError("not a text");
    if (characters === null) return spaces(text, isLeft, isRight);
    // A surrogate pair would be taken for two characters.
    if (typeof characters !== "string" || /[\u{10000}-\u{10ffff}]/u.test(characters)) {
      throw new TypeError("not plain characters");
    }
    let from = 0;
    let to = text.length;
    while (isLeft && from < to && characters.includes(text.charAt(from))) from += 1;
    while (isRight && from < to && characters.includes(text.charAt(to - 1))) to -= 1;
    return text.slice(from, to);
  };
}

function spaces(text: string, isLeft: boolean, isRight: boolean): string {
  const begun = isLeft ? text.trimStart() : text;
  return isRight ? begun.trimEnd() : begun;
}
