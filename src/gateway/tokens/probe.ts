// Owns comparing an engine's tokens with those of a tokenizer here, on sample texts and chats.
import { GATEWAY_PROBE_MS } from "../../base/limits/gateway.ts";
import type { Engine } from "../engines/engine.ts";
import { answerOf } from "./ask.ts";
import type { Question } from "./ask.ts";
import { chatOf } from "./chat.ts";
import type { Chat } from "./chat.ts";
import { promptOf } from "./prompt.ts";

export interface Verdict {
  texts: boolean;
  chats: boolean;
  /** Chats with tools. */
  tools: boolean;
  /** The first sample that became other tokens; null: none. */
  differs: string | null;
}

/** The tokenizer to compare with the engine. */
export interface Ours {
  /** Special tokens as texts. */
  marks: readonly string[];
  /** null: it took too long; empty: the text cannot be encoded. */
  encode(text: string, isFramed: boolean, withinMs: number): Promise<Uint32Array | null>;
  render(chat: Chat): string | null;
}

const TEXTS: readonly string[] = [
  "The café's naïve Straße costs 1,234.50 €; don't, WE'LL, I'm.\r\n\r\n\tTabs,  two spaces   \n\n\n end ",
  " 0123456789 3.14159 0x7f 1e-9 ½ ① Ⅷ ² ٣\ndef f(x):\n    return {'a': [1, 2], \"b\": not x}\n\n\n",
  "é e\u0301 ñ n\u0303 ﬁ Ａ İ ı ſ ß 각 \u1100\u1161\u11a8 日本語のテキスト。中文，한국어 ไทย हिन्दी العربية עברית",
  "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 𝒳 𠜎 \u0001\u007f\u0085\u00a0\u2028\u200b\u200d\ufeff\ufffd\u{10ffff}",
  `${"a".repeat(300)}${" ".repeat(300)}${"\n".repeat(70)}${"=".repeat(200)}${"!?".repeat(40)}`,
];
const USER = { role: "user", content: "  What is 1 + 1?\n" };
const TURNS = [
  USER,
  { role: "assistant", content: "<think>\nSmall.\n</think>\n\nIt is 2. " },
  { role: "user", content: "And 日本語 👍🏽?" },
];
const SYSTEM = { role: "system", content: "You are brief." };
const CHATS: readonly object[] = [
  { messages: [USER] },
  { messages: TURNS },
  { messages: [SYSTEM, ...TURNS] },
  { messages: [SYSTEM, USER], chat_template_kwargs: { enable_thinking: false } },
  { messages: TURNS.slice(0, 2), add_generation_prompt: false },
];
const TOOL = {
  type: "function",
  function: {
    name: "look_up",
    description: "Finds a \"word\" in <books> & 'papers'.",
    parameters: {
      type: "object",
      properties: { word: { type: "string", enum: ["é", "日"] }, all: { type: "boolean" } },
      required: ["word"],
    },
  },
};
const WITH_TOOLS = [{ messages: [SYSTEM, USER], tools: [TOOL] }];

/** Returned in place of a difference: one side did not answer. */
const LATE = Symbol("late");
const NO_CHAT = "no chat can be rendered here";

/** Returns null where the engine or a busy machine was too slow, because that says nothing about their tokens. */
export async function probe(model: string, engine: Engine, ours: Ours): Promise<Verdict | null> {
  const text = await differingText(model, engine, ours);
  if (text === LATE) return null;
  if (text !== null) return { texts: false, chats: false, tools: false, differs: text };
  const marked = { messages: [{ role: "user", content: `a ${ours.marks.join("")} b` }] };
  const differs = await differingChat([...CHATS, marked], model, engine, ours);
  if (differs === LATE) return null;
  const chats = differs === null;
  const tools = chats ? await differingChat(WITH_TOOLS, model, engine, ours) : NO_CHAT;
  return tools === LATE ? null : { texts: true, chats, tools: tools === null, differs };
}

/** Returns the first text of which the engine makes other tokens. */
async function differingText(
  model: string,
  engine: Engine,
  ours: Ours,
): Promise<string | typeof LATE | null> {
  const marks = ours.marks.length === 0 ? [] : [ours.marks.join(""), ours.marks.join(" x ")];
  for (const prompt of [...TEXTS, ...marks]) {
    for (const more of [{}, { add_special_tokens: false }]) {
      const { question, own } = promptOf("/v1/completions", { model, prompt, ...more }) ?? {};
      if (own === null || own === undefined || !("text" in own)) continue;
      const found = await compare(engine, question, ours, own);
      if (found === "late" || found === "refused") return LATE;
      if (found === "other") return prompt;
    }
  }
  return null;
}

/** Returns the first chat of which the engine makes other tokens; skips chats that the template refuses. */
async function differingChat(
  chats: readonly object[],
  model: string,
  engine: Engine,
  ours: Ours,
): Promise<string | typeof LATE | null> {
  let compared = 0;
  for (const asked of chats) {
    const body = { model, ...asked };
    const chat = chatOf(body);
    const text = chat === null ? null : ours.render(chat);
    if (chat === null || text === null) continue;
    const { question } = promptOf("/v1/chat/completions", body) ?? {};
    const found = await compare(engine, question, ours, { text, isFramed: chat.isFramed });
    if (found === "late") return LATE;
    if (found !== "same") return text;
    compared += 1;
  }
  return compared === 0 ? NO_CHAT : null;
}

async function compare(
  engine: Engine,
  question: Question | null | undefined,
  ours: Ours,
  { text, isFramed }: { text: string; isFramed: boolean },
): Promise<"same" | "other" | "refused" | "late"> {
  if (question === null || question === undefined) return "refused";
  const answer = await answerOf(engine, question, GATEWAY_PROBE_MS);
  if (answer === null) return "late";
  const { tokens } = answer;
  if (tokens === null) return "refused";
  const made = await ours.encode(text, isFramed, GATEWAY_PROBE_MS);
  if (made === null) return "late";
  const areEqual = made.length === tokens.length && made.every((id, at) => id === tokens[at]);
  return areEqual ? "same" : "other";
}
