// Owns the part of a request's body that determines its first blocks, for every API form of an engine.
import { GATEWAY_ENCODE_CHARS_MAX } from "../../base/limits/gateway.ts";
import { isTokens } from "./ask.ts";
import type { Question } from "./ask.ts";

export type Fields = Readonly<Record<string, unknown>>;

export interface Prompt {
  model: string;
  /** Token ids, if the client gave them. */
  tokens: readonly number[] | null;
  /** How an engine is asked for the token ids; null: the client gave them. */
  question: Question | null;
  /** Input for a tokenizer of ours; null: only the engine can make the tokens. */
  own: { text: string; isFramed: boolean } | { chat: Fields } | null;
  salt: string | null;
  /** Whether the engine computes the whole prompt, whatever it holds. */
  isComputed: boolean;
}

type Common = Pick<Prompt, "model" | "salt" | "isComputed">;

const COMPLETIONS = "/v1/completions";
export const CHAT = "/v1/chat/completions";
export const MESSAGES = "/v1/messages";
export const RESPONSES = "/v1/responses";
/** vLLM takes any form there, and tells it by its fields. */
const INVOCATIONS = "/invocations";

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

/**
 * Fields of a chat that change no token of its prompt in vLLM 0.28 to 0.33. A chat with any other field is rendered by the
 * engine's own route, which takes all of them: `reasoning_effort`, `documents`, and fields that are not known here.
 */
const HARMLESS: ReadonlySet<string> = new Set([
  ...CHAT_FIELDS,
  "allowed_token_ids",
  "bad_words",
  "cache_salt",
  "frequency_penalty",
  "ignore_eos",
  "include_stop_str_in_output",
  "kv_transfer_params",
  "length_penalty",
  "logit_bias",
  "logprobs",
  "max_completion_tokens",
  "max_tokens",
  "metadata",
  "min_p",
  "min_tokens",
  "model",
  "n",
  "parallel_tool_calls",
  "presence_penalty",
  "priority",
  "prompt_cache_key",
  "prompt_logprobs",
  "repetition_penalty",
  "request_id",
  "return_token_ids",
  "return_tokens_as_token_ids",
  "safety_identifier",
  "seed",
  "service_tier",
  "session_id",
  "skip_special_tokens",
  "spaces_between_special_tokens",
  "stop",
  "stop_token_ids",
  "store",
  "stream",
  "stream_options",
  "temperature",
  "top_k",
  "top_logprobs",
  "top_p",
  "use_beam_search",
  "user",
]);

/** Returns null for a prompt whose blocks cannot be known, such as several at once. `model`: where the body names none. */
export function promptOf(path: string, body: unknown, model: string | null = null): Prompt | null {
  if (typeof body !== "object" || body === null || Array.isArray(body)) return null;
  const fields = body as Fields;
  const named = textOf(fields["model"]) || model;
  const cut = fields["truncate_prompt_tokens"] ?? -1;
  // The engine computes only a part of a prompt that it cuts; -1 cuts at the longest that it takes.
  if (named === null || cut !== -1) return null;
  const salt = fields["cache_salt"];
  const form = formOf(path, fields);
  const common = {
    model: named,
    salt: typeof salt === "string" ? salt : null,
    isComputed: isComputedWhole(form, fields),
  };
  return FORMS.get(form)?.(fields, common) ?? null;
}

/** How a prompt is read, by the path of its form. */
const FORMS: ReadonlyMap<string, (fields: Fields, common: Common) => Prompt | null> = new Map([
  [COMPLETIONS, completionOf],
  [CHAT, chatOf],
  [MESSAGES, (fields: Fields, common: Common) => renderedAt(MESSAGES, fields, common)],
  [RESPONSES, responseOf],
]);

const textOf = (value: unknown): string => (typeof value === "string" ? value : "");

/** Returns the path of the API whose form a request has. */
export function formOf(path: string, fields: Fields): string {
  if (path !== INVOCATIONS) return path;
  return "messages" in fields ? CHAT : COMPLETIONS;
}

/**
 * vLLM reads no cached block for a request that asks for the log-probabilities of its prompt. An echo asks for as many as for the
 * answer's tokens: of a completion none by default, of a chat 0, which counts as asking. The other APIs have no such fields.
 */
function isComputedWhole(form: string, fields: Fields): boolean {
  if (form !== COMPLETIONS && form !== CHAT) return false;
  const { prompt_logprobs = null, echo, logprobs = null } = fields;
  return prompt_logprobs !== null || (echo === true && (form === CHAT || logprobs !== null));
}

/** A stored answer before it is part of the prompt, and only its own engine has it. */
const isContinued = ({ previous_response_id: before = null }: Fields): boolean => before !== null;

function responseOf(fields: Fields, common: Common): Prompt | null {
  return isContinued(fields) ? null : renderedAt(RESPONSES, fields, common);
}

function completionOf(fields: Fields, common: Common): Prompt | null {
  const { prompt: given, add_special_tokens, suffix = null, prompt_embeds = null } = fields;
  // Some models put a suffix into the prompt, with marks of their own; embeddings have no tokens.
  if (suffix !== null || prompt_embeds !== null) return null;
  const prompt: unknown =
    Array.isArray(given) && given.length === 1 && !isTokens(given) ? given[0] : given;
  if (isTokens(prompt)) return { ...common, tokens: prompt, question: null, own: null };
  if (typeof prompt !== "string") return null;
  const body = JSON.stringify({ model: common.model, prompt, add_special_tokens });
  const isFramed = add_special_tokens ?? true;
  const own = typeof isFramed === "boolean" ? { text: prompt, isFramed } : null;
  return { ...common, tokens: null, question: { path: "/tokenize", body }, own };
}

function chatOf(fields: Fields, common: Common): Prompt | null {
  const { messages } = fields;
  const isHarmless = Object.keys(fields).every(
    (name) => HARMLESS.has(name) || fields[name] === null || isUsual(name, fields),
  );
  if (!isHarmless || forwardedIn(fields) !== null || !isPlain(messages)) {
    return renderedAt(CHAT, fields, common);
  }
  const asked: Record<string, unknown> = { model: common.model };
  for (const name of CHAT_FIELDS) if (name in fields) asked[name] = fields[name];
  const body = JSON.stringify(asked);
  return {
    ...common,
    tokens: null,
    question: { path: "/tokenize", body },
    own: ownChat(fields, body),
  };
}

/** Whether the field has the value that vLLM gives it where it is absent. */
const isUsual = (name: string, { tools, tool_choice: choice }: Fields): boolean =>
  name === "tool_choice" && choice === "auto" && Array.isArray(tools) && tools.length > 0;

/** Fields that change no prompt and would make equal prompts different questions. */
const LEFT_OUT = ["stream", "stream_options", "kv_transfer_params", "request_id", "user", "seed"];

/** Asks the engine's own route that renders such a request without computing it. */
function renderedAt(form: string, fields: Fields, common: Common): Prompt {
  const kept = Object.fromEntries(
    Object.entries(fields).filter(([name]) => !LEFT_OUT.includes(name)),
  );
  const forwarded = forwardedIn(fields);
  if (forwarded !== null) kept["kv_transfer_params"] = { prompt_token_ids: forwarded };
  const body = JSON.stringify({ ...kept, model: common.model });
  return { ...common, tokens: null, question: { path: `${form}/render`, body }, own: null };
}

/** Token ids that an engine computes in place of the messages, as far as it takes them (vLLM 0.32); null: there are none. */
function forwardedIn({ kv_transfer_params: params }: Fields): unknown {
  if (typeof params !== "object" || params === null) return null;
  return (params as Fields)["prompt_token_ids"] ?? null;
}

/** null for a long chat, because rendering it would hold up all other requests. */
const ownChat = (chat: Fields, question: string): Prompt["own"] =>
  question.length > GATEWAY_ENCODE_CHARS_MAX ? null : { chat };

/** Accepts texts alone, which `/tokenize` and our own templates render as engines do. */
function isPlain(messages: unknown): boolean {
  return (
    Array.isArray(messages) &&
    messages.every((message: unknown) => {
      if (typeof message !== "object" || message === null || !("content" in message)) return false;
      return typeof message.content === "string" || message.content === null;
    })
  );
}
