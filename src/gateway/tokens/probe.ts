// Owns the question whether an engine makes the same tokens as a tokenizer here: some texts and chats, turned into tokens by both.
import { GATEWAY_PROBE_MS } from "../../limits/gateway.ts";
import type { Engine } from "../engines/engine.ts";
import { askEngine } from "./ask.ts";
import { chatOf } from "./chat.ts";
import type { Chat } from "./chat.ts";
import { promptOf } from "./prompt.ts";

export interface Verdict {
  texts: boolean;
  chats: boolean;
  /** Chats with tools. */
  tools: boolean;
  /** The first of them that became other tokens; null: none. */
  differs: string | null;
}

/** What is asked beside the engine. */
export interface Ours {
  /** Special tokens as texts. */
  marks: readonly string[];
  encode(
    text: string,
    isFramed: boolean,
    withinMs: number,
  ): Promise<readonly number[] | null> | null;
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

/** null: the engine does not answer. */
export async function probe(model: string, engine: Engine, ours: Ours): Promise<Verdict | null> {
  const marks = ours.marks.length === 0 ? [] : [ours.marks.join(""), ours.marks.join(" x ")];
  for (const prompt of [...TEXTS, ...marks]) {
    for (const more of [{}, { add_special_tokens: false }]) {
      const { question, own } = promptOf("/v1/completions", { model, prompt, ...more }) ?? {};
      if (own === null || own === undefined || !("text" in own)) continue;
      const theirs = await askEngine(engine, question ?? "", GATEWAY_PROBE_MS);
      if (theirs === null) return null;
      const made = await ours.encode(own.text, own.isFramed, GATEWAY_PROBE_MS);
      if (!areEqual(theirs, made)) {
        return { texts: false, chats: false, tools: false, differs: prompt };
      }
    }
  }
  const marked = { messages: [{ role: "user", content: `a ${ours.marks.join("")} b` }] };
  const differs = await differing([...CHATS, marked], model, engine, ours);
  const chats = differs === null;
  const tools = chats && (await differing(WITH_TOOLS, model, engine, ours)) === null;
  return { texts: true, chats, tools, differs };
}

/** The first chat of which the engine makes something else; those that the template refuses, ours does not render. */
async function differing(
  chats: readonly object[],
  model: string,
  engine: Engine,
  ours: Ours,
): Promise<string | null> {
  let compared = 0;
  for (const asked of chats) {
    const body = { model, ...asked };
    const chat = chatOf(body);
    const text = chat === null ? null : ours.render(chat);
    if (chat === null || text === null) continue;
    const question = promptOf("/v1/chat/completions", body)?.question ?? "";
    const theirs = await askEngine(engine, question, GATEWAY_PROBE_MS);
    const made = await ours.encode(text, chat.isFramed, GATEWAY_PROBE_MS);
    if (theirs === null || !areEqual(theirs, made)) return text;
    compared += 1;
  }
  return compared === 0 ? "no chat can be rendered here" : null;
}

function areEqual(theirs: readonly number[], made: readonly number[] | null): boolean {
  return made?.length === theirs.length && theirs.every((id, at) => id === made[at]);
}
