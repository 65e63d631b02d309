// Owns the part of a request's body that determines its first blocks.
import { GATEWAY_ENCODE_CHARS_MAX } from "../../limits/gateway.ts";
import { isTokens } from "./ask.ts";

export type Fields = Readonly<Record<string, unknown>>;

export interface Prompt {
  model: string;
  /** Token ids, if the client gave them. */
  tokens: readonly number[] | null;
  /** Body for the engine's `/tokenize`; null: the client gave token ids. */
  question: string | null;
  /** Input for a tokenizer of ours; null: only the engine can make the tokens. */
  own: { text: string; isFramed: boolean } | { chat: Fields } | null;
  salt: string | null;
}

const COMPLETIONS = /^\/v1\/completions$/;
const CHAT = /^\/v1\/chat\/completions$/;
/** Fields that change a chat template's result, by their names in `/tokenize`. */
const CHAT_FIELDS = [
  "messages",
  "add_generation_prompt",
  "continue_final_message",
  "add_special_tokens",
  "chat_template",
  "chat_template_kwargs",
  "mm_processor_kwargs",
  "tools",
];

/** Returns null for a prompt whose blocks cannot be known, such as several at once or pictures. */
export function promptOf(path: string, body: unknown): Prompt | null {
  if (typeof body !== "object" || body === null) return null;
  const fields = body as Fields;
  const { model, cache_salt: salt, truncate_prompt_tokens: cut = null } = fields;
  // The engine computes only a part of a prompt that it cuts.
  if (typeof model !== "string" || cut !== null) return null;
  const common = { model, salt: typeof salt === "string" ? salt : null };
  if (COMPLETIONS.test(path)) return completionOf(fields, common);
  if (!CHAT.test(path) || !isPlain(fields["messages"])) return null;
  const given = CHAT_FIELDS.map((name) => [name, fields[name]]);
  const question = JSON.stringify({ model, ...Object.fromEntries(given) });
  return { ...common, tokens: null, question, own: ownChat(fields, question) };
}

function completionOf(fields: Fields, common: Pick<Prompt, "model" | "salt">): Prompt | null {
  const { prompt, add_special_tokens } = fields;
  if (isTokens(prompt)) return { ...common, tokens: prompt, question: null, own: null };
  if (typeof prompt !== "string") return null;
  const question = JSON.stringify({ model: common.model, prompt, add_special_tokens });
  const isFramed = add_special_tokens ?? true;
  const own = typeof isFramed === "boolean" ? { text: prompt, isFramed } : null;
  return { ...common, tokens: null, question, own };
}

/** null for a long chat, because rendering it would hold up all other requests. */
const ownChat = (chat: Fields, question: string): Prompt["own"] =>
  question.length > GATEWAY_ENCODE_CHARS_MAX ? null : { chat };

/** Accepts texts alone, because a picture's own digest tells its blocks apart. */
function isPlain(messages: unknown): boolean {
  return (
    Array.isArray(messages) &&
    messages.every((message: unknown) => {
      if (typeof message !== "object" || message === null || !("content" in message)) return false;
      return typeof message.content === "string" || message.content === null;
    })
  );
}
