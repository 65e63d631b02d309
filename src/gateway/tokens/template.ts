// Owns chat templates rendered as in Python: where the renderer differs, templates call functions of ours.
import { Template } from "@huggingface/jinja";

type Ours = (...values: unknown[]) => unknown;

/** String methods whose argument the renderer ignores, by their names in templates. */
const METHODS: ReadonlyMap<string, Ours> = new Map([
  ["strip", strip(true, true)],
  ["lstrip", strip(true, false)],
  ["rstrip", strip(false, true)],
]);
const PREFIX = "tierkv_";
const [SHOWN, JOINED, LENGTH, EQUAL, OTHER, REST] = [
  "shown",
  "joined",
  "length",
  "equal",
  "other",
  "rest",
];
/** Operators that the renderer applies as JavaScript does, and the functions that apply them as Python does. */
const OPERATORS: ReadonlyMap<string, string> = new Map([
  ["~", JOINED],
  ["==", EQUAL],
  ["!=", OTHER],
  ["%", REST],
]);
/** The same of filters. */
const FILTERS: ReadonlyMap<string, string> = new Map([
  ["string", JOINED],
  ["length", LENGTH],
]);
export const FUNCTIONS: Readonly<Record<string, Ours>> = Object.fromEntries(
  [
    ...METHODS,
    [
      SHOWN,
      (value: unknown, isNone: unknown) => (isNone === true ? "None" : textOf(value ?? "")),
    ] as const,
    [JOINED, (...values: unknown[]) => values.map(textOf).join("")] as const,
    [LENGTH, lengthOf] as const,
    [REST, restOf] as const,
    [EQUAL, isEqual] as const,
    [OTHER, (one: unknown, other: unknown) => !isEqual(one, other)] as const,
  ].map(([name, method]) => [PREFIX + name, method]),
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
  operator?: Node;
  left?: unknown;
  right?: unknown;
  operand?: unknown;
  filter?: Node;
}

/** Parts of a template that are shown where they stand, as their kinds are named there. */
const BLOCKS = ["body", "alternate", "defaultBlock"];
/** Kinds of expressions whose value may be other than a text. */
const VALUES: ReadonlySet<unknown> = new Set([
  "BinaryExpression",
  "CallExpression",
  "FilterExpression",
  "Identifier",
  "MemberExpression",
  "SelectExpression",
  "Ternary",
  "TestExpression",
  "UnaryExpression",
]);
/** Kinds among `VALUES` that can be evaluated twice. */
const NAMED: ReadonlySet<unknown> = new Set(["Identifier", "MemberExpression"]);

function rewrite(part: unknown): void {
  if (typeof part !== "object" || part === null) return;
  for (const inner of part instanceof Map ? part.values() : Object.values(part)) rewrite(inner);
  rewriteCall(part);
  rewriteValue(part);
  for (const name of BLOCKS) {
    const block = (part as Record<string, unknown>)[name];
    if (Array.isArray(block)) (part as Record<string, unknown>)[name] = block.map(shownThere);
  }
}

/** `text.strip(characters)` becomes `tierkv_strip(text, characters)`. */
function rewriteCall(part: Node): void {
  const { type, callee, args } = part;
  if (type !== "CallExpression" || callee?.type !== "MemberExpression") return;
  const { object, property, computed } = callee;
  const name = String(property?.value);
  if (computed === true || args === undefined || !METHODS.has(name)) return;
  args.unshift(object);
  part.callee = { type: "Identifier", value: PREFIX + name };
}

/** `a ~ b` becomes `tierkv_joined(a, b)`, `a == b` becomes `tierkv_equal(a, b)`, and `a | string` becomes `tierkv_joined(a)`; alike for `%` and `length`. */
function rewriteValue(part: Node): void {
  const { type, operator, filter, left, right, operand } = part;
  if (type === "BinaryExpression") {
    const name = OPERATORS.get(String(operator?.value));
    if (name !== undefined) Object.assign(part, callOf(name, [left, right]));
  } else if (type === "FilterExpression" && filter?.type === "Identifier") {
    const name = FILTERS.get(String(filter.value));
    if (name !== undefined) Object.assign(part, callOf(name, [operand]));
  }
}

/** `{{ a }}` becomes `{{ tierkv_shown(a, a is none) }}`: functions get the same for None as for what is not defined. */
function shownThere(part: Node): Node {
  if (!VALUES.has(part.type)) return part;
  if (!NAMED.has(part.type)) return callOf(SHOWN, [part]);
  const none = { type: "Identifier", value: "none" };
  return callOf(SHOWN, [
    part,
    { type: "TestExpression", operand: part, negate: false, test: none },
  ]);
}

function callOf(name: string, args: unknown[]): Node {
  return { type: "CallExpression", callee: { type: "Identifier", value: PREFIX + name }, args };
}

/** Returns a value's text in Python. Throws for lists, maps and fractions, and for None and what is not defined. */
function textOf(value: unknown): string {
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string" || Number.isSafeInteger(value)) return String(value);
  throw new TypeError("no text, and no whole number");
}

/** Counts characters, items or keys. Throws for what has no length. */
function lengthOf(value: unknown): number {
  if (typeof value === "string") return Array.from(value).length;
  if (Array.isArray(value)) return value.length;
  if (value instanceof Map) return value.size;
  throw new TypeError("it has no length");
}

/** Returns the rest of a division with the sign of the divisor. Throws unless both are whole numbers. */
function restOf(one: unknown, other: unknown): number {
  if (!Number.isSafeInteger(one) || !Number.isSafeInteger(other) || other === 0) {
    throw new TypeError("no whole numbers");
  }
  const [dividend, divisor] = [one as number, other as number];
  return (((dividend % divisor) + divisor) % divisor) + 0;
}

/** Compares as Python does: nothing equals a value of another kind, but True is 1. Throws for lists, maps and two that are absent. */
function isEqual(one: unknown, other: unknown): boolean {
  // None does not equal what is not defined, and both look alike here.
  if (one === undefined && other === undefined) throw new TypeError("nothing to compare");
  if ([one, other].some((value) => typeof value === "object" && value !== null)) {
    throw new TypeError("a list or a map");
  }
  const plain = (value: unknown): unknown => (typeof value === "boolean" ? Number(value) : value);
  return plain(one) === plain(other);
}

/** Strips as Python does: all characters of a set, from the ends named. */
function strip(isLeft: boolean, isRight: boolean): Ours {
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
