// Owns the words for where a prompt stops matching an earlier one: the place, the text around it, and the usual cause.
import type { Divergence } from "../sidecar/socket/divergence.ts";

/** A divergence's token ids as text. */
export interface DivergenceText {
  head: string;
  before: string;
  was: string;
  now: string;
  /** Text of the replaced and of the replacing tokens, as far as it is known. */
  gone: string;
  come: string;
}

/** Usual causes, and what helps. */
const CAUSES = {
  order: "the same parts come in another order: sort tools, files and keys before they are written",
  billing: "a billing header that changes with each request: turn it off at the client",
  time: "a date or time that changes: move it behind what stays the same, or leave it out",
  id: "an id that changes (request, session, user): move it behind what stays the same, or leave it out",
  number: "a number that changes: move it behind what stays the same, or leave it out",
  answer:
    "the client or the chat template writes an earlier answer other than it was generated (thinking left out, tool calls formatted anew)",
  shorter: "nothing changed: the prompt ends within the earlier one",
  salt: "blocks of different cache_salt are never shared",
  picture: "another picture stands there",
  system: "the system prompt differs: requests that shall share it need the same text",
  end: "nothing is to be mended: the prompts differ near their end alone, as two questions about one text do",
  unknown:
    "usual causes: a date, time or id in the system prompt, a billing header, tools in another order, a chat template that rewrites earlier turns",
} as const;

export type DivergenceCause = keyof typeof CAUSES;

/** Tokens that must be equal, before or behind a difference, to call two prompts alike. */
const ALIKE_TOKENS = 16;
/** Characters of a text shown on each side. */
const SHOWN_CHARS = 60;
/** Characters before a difference that may belong to the same word. */
const WORD_CHARS = 40;
/** Characters behind a difference within which its cause begins. */
const NEAR_CHARS = 10;
/** The same of a text that came in or went as a whole, which may begin with a label. */
const INSERTED_CHARS = 40;

const TIME =
  /\d{1,2}:\d{2}(?::\d{2})?|\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\b(?:mon|tues?|wednes|thurs?|fri|satur|sun)day\b|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? \d{1,2}\b|\b1[5-9]\d{8}(?:\d{3})?\b/gi;
const ID = /[\da-f]{8}-[\da-f]{4}-[\da-f-]+|\b(?=[\da-z_-]*\d)[\da-z]+(?:[_-][\da-z]+)*\b/gi;
const ID_CHARS = 10;
const NUMBER = /\d+/g;
const BILLING = /x-anthropic-billing-header|\bcch=/i;
/** A role behind, or in, the token that begins a message. */
const ROLE =
  /[>\]]\s*(system|developer|user|assistant|model|tool|function|ipython)\b|<[|｜]?(system|developer|user|assistant|tool)[|｜]?>/i;

/** Returns lines for `tierkv explain`, each with its label. `text`: null without the engine's tokenizer. */
export function describeDivergence(
  divergence: Divergence,
  text: DivergenceText | null,
): [label: string, text: string][] {
  const { what, at, tokens, earlier, same } = divergence;
  if (what === "salt") {
    return [["differs", `its first ${same} tokens are those of ${earlier}: ${CAUSES.salt}`]];
  }
  if (!isAlike(divergence)) {
    return [
      [
        "differs",
        `no earlier prompt begins like it (nearest: ${earlier}, ${at} equal at the start)`,
      ],
    ];
  }
  const role = text === null ? null : roleOf(text.head);
  const inside = role === null ? "" : ` (${role} message)`;
  const rows: [string, string][] = [
    ["differs", `from ${earlier} at token ${at} of ${tokens}${inside}${rest(divergence)}`],
  ];
  if (text !== null && what === "tokens") {
    const [was, now] = [text.was, text.now].map((side) => quoted(cut(side)));
    const before =
      text.before.length > SHOWN_CHARS ? `…${text.before.slice(-SHOWN_CHARS)}` : text.before;
    const place = before === "" ? "at its start" : `after ${quoted(before)}`;
    rows.push(["text", `${place} was ${was}, now ${now}`]);
  }
  const cause = causeOf(divergence, text);
  // Nothing is to be mended, and the text shows that.
  return cause === "shorter" ? rows : [...rows, ["cause", CAUSES[cause]]];
}

/** False for prompts that have little more than their template in common. */
function isAlike({ at, same, what }: Divergence): boolean {
  return what === "picture" || at >= ALIKE_TOKENS || same >= ALIKE_TOKENS;
}

function rest({ what, gone, come, same, isMoved }: Divergence): string {
  if (what === "picture" || isMoved || same === 0) return "";
  const change =
    gone === 0
      ? `${countOf(come)} came in`
      : come === 0
        ? `${countOf(gone)} went`
        : `${countOf(gone)} replaced by ${come}`;
  return `: ${change}, and the next ${same} are equal again`;
}

function countOf(count: number): string {
  return count === 1 ? "1 token" : `${count} tokens`;
}

/** Returns the most probable cause; `text`: null without the engine's tokenizer. */
export function causeOf(divergence: Divergence, text: DivergenceText | null): DivergenceCause {
  const { what, isAnswer, isMoved } = divergence;
  if (what !== "tokens") return what;
  if (text !== null && isEndOf(divergence, text)) return "shorter";
  if (text !== null && BILLING.test(text.before + text.was + text.now)) return "billing";
  if (isAnswer) return "answer";
  if (isMoved) return "order";
  const cause = text === null ? "unknown" : changeIn(divergence, text);
  return cause === "unknown" && isNearEnd(divergence) ? "end" : cause;
}

/** Whether no more than the last tenth of the prompt differs. */
function isNearEnd({ at, tokens }: Divergence): boolean {
  return (tokens - at) * 10 <= tokens;
}

/** Whether the prompt ends there, with a beginning of the earlier one's text: its last token may be another all the same. */
function isEndOf({ at, tokens, now }: Divergence, text: DivergenceText): boolean {
  return at + now.length >= tokens && text.was.startsWith(text.now);
}

function changeIn({ gone, come, same }: Divergence, text: DivergenceText): DivergenceCause {
  const isShort = gone + come > 0 && same > 0;
  // Of tokens that only came in, or only went, the other side is empty.
  const sides = isShort
    ? [text.gone, text.come].filter((side) => side !== "")
    : [text.was, text.now];
  const nearChars = sides.length > 1 ? NEAR_CHARS : INSERTED_CHARS;
  const begun = text.before.slice(-WORD_CHARS);
  const changes = (pattern: RegExp, least = 1): boolean =>
    sides.every((side) => touches(pattern, begun, side, least, nearChars));
  if (changes(TIME)) return "time";
  if (changes(ID, ID_CHARS)) return "id";
  if (isShort && sides.length > 1 && changes(NUMBER)) return "number";
  return roleOf(text.head) === "system" ? "system" : "unknown";
}

/** Whether a match of `least` characters reaches into `side`, behind `begun`, or begins within `nearChars` of its start. */
function touches(
  pattern: RegExp,
  begun: string,
  side: string,
  least: number,
  nearChars: number,
): boolean {
  const border = begun.length;
  return [...(begun + side).matchAll(pattern)].some(
    ({ 0: found, index }) =>
      found.length >= least && index + found.length > border && index <= border + nearChars,
  );
}

/** Returns the role of the message that these tokens begin; null: not known. */
export function roleOf(head: string): string | null {
  const [, behind, inside] = ROLE.exec(head) ?? [];
  const role = (behind ?? inside)?.toLowerCase() ?? null;
  return role === "model" ? "assistant" : role;
}

const cut = (text: string): string =>
  text.length > SHOWN_CHARS ? `${text.slice(0, SHOWN_CHARS)}…` : text;

const quoted = (text: string): string => JSON.stringify(text);
