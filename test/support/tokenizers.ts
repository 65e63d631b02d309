// Owns a small tokenizer in a folder, and an engine's `/tokenize` that uses it or another one.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { tokenizerEncode, tokenizerOpen } from "../../src/base/native.ts";
import type { SimEngine } from "./sim-engine.ts";

const LETTERS = Array.from({ length: 95 }, (_none, at) => String.fromCodePoint(32 + at));
const TEMPLATE =
  "{% for message in messages %}<|turn|>{{ message.role }}\n{{ message.content }}\n{% endfor %}" +
  "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" +
  "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}";

/** Writes a token for each keyboard character, one for all others, and the added ones. */
export function writeTokenizer(
  folder: string,
  template = TEMPLATE,
  added: readonly string[] = ["<|turn|>"],
): string {
  mkdirSync(folder, { recursive: true });
  const vocab = Object.fromEntries(["?!", "\n", ...LETTERS].map((letter, id) => [letter, id]));
  const how = { lstrip: false, rstrip: false, single_word: false, normalized: false };
  const json = {
    version: "1.0",
    added_tokens: added.map((content, at) => ({ id: 1000 + at, content, special: true, ...how })),
    model: { type: "BPE", vocab, merges: [], unk_token: "?!", fuse_unk: false },
  };
  writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(json));
  writeFileSync(join(folder, "tokenizer_config.json"), JSON.stringify({ chat_template: template }));
  return folder;
}

interface Question {
  prompt?: string;
  messages?: { role: string; content: string }[];
  add_generation_prompt?: boolean;
  tools?: object[];
}

/** Answers like an engine with this tokenizer; `chatty` renders chats differently from the template. */
export async function tokenizeBy(
  engine: SimEngine,
  folder: string,
  how: "alike" | "chatty" | "other" = "alike",
): Promise<void> {
  const id = await tokenizerOpen(folder);
  engine.tokenize = async (body) => {
    const { prompt, messages = [], tools, add_generation_prompt } = JSON.parse(body) as Question;
    const turns = messages.map(({ role, content }) => `<|turn|>${role}\n${content}\n`).join("");
    const shown = (tools ?? []).map((tool) => JSON.stringify(tool)).join("");
    const end = add_generation_prompt === false ? "" : "<|turn|>assistant\n";
    const text = prompt ?? `${how === "chatty" ? "Hi. " : ""}${turns}${shown}${end}`;
    return [...(await tokenizerEncode(id, how === "other" ? `${text}!` : text, true))];
  };
}
