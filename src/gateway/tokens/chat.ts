// Owns which chats the gateway renders as text, and that text; a chat that an engine might render differently is left to the engine.
import type { Template } from "@huggingface/jinja";
import { GATEWAY_CHAT_MESSAGES_MAX, GATEWAY_CHAT_VALUES_MAX } from "../../base/limits/gateway.ts";
import type { Fields } from "./prompt.ts";
import { FUNCTIONS } from "./template.ts";

/** Inputs for rendering a model's chats. */
export interface Rendering {
  template: Template;
  /** Special tokens by the names that templates use, such as `bos_token`. */
  special: Readonly<Record<string, string>>;
}

export interface Chat {
  messages: { role: string; content: string }[];
  tools: object[] | null;
  /** Further variables of the template: flags and words. */
  more: Record<string, boolean | string | null>;
  addGenerationPrompt: boolean;
  isFramed: boolean;
}

const ROLES: ReadonlySet<unknown> = new Set(["system", "user", "assistant"]);
/** Fields that change the template's input in ways that we do not follow. */
const FOREIGN = [
  "chat_template",
  "continue_final_message",
  "documents",
  "mm_processor_kwargs",
  "media_io_kwargs",
  "reasoning_effort",
];
/** Characters that a template's trimming takes for space in only one of Python and JavaScript. */
const OTHER_SPACE = ["\u{1c}", "\u{1d}", "\u{1e}", "\u{1f}", "\u{85}", "\u{feff}"];
const TOOL_DEPTH_MAX = 32;
/** vLLM removes a line with this text from system messages. */
const BILLING = "x-anthropic-billing-header";

/** Returns null where the engine might render the chat differently. */
export function chatOf(body: Fields): Chat | null {
  if (FOREIGN.some((name) => (body[name] ?? false) !== false)) return null;
  const { messages: given, tools = null, add_generation_prompt: prompts = true } = body;
  const { add_special_tokens: isFramed = false, chat_template_kwargs: kwargs = null } = body;
  if (typeof prompts !== "boolean" || typeof isFramed !== "boolean") return null;
  const messages = messagesOf(given);
  const more = moreOf(kwargs);
  const shown = toolsOf(tools);
  if (messages === null || more === null || shown === undefined) return null;
  return { messages, tools: shown, more, addGenerationPrompt: prompts, isFramed };
}

const isFields = (value: unknown): value is Fields =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const hasOnly = (fields: Fields, names: readonly string[]): boolean =>
  Object.keys(fields).length === names.length && names.every((name) => Object.hasOwn(fields, name));

function messagesOf(given: unknown): Chat["messages"] | null {
  if (!Array.isArray(given) || given.length > GATEWAY_CHAT_MESSAGES_MAX) return null;
  const messages = given.map(messageOf);
  return messages.includes(null) ? null : (messages as Chat["messages"]);
}

function messageOf(message: unknown): Chat["messages"][number] | null {
  if (!isFields(message) || !hasOnly(message, ["role", "content"])) return null;
  const { role, content } = message;
  if (typeof role !== "string" || !ROLES.has(role) || typeof content !== "string") return null;
  if (
    OTHER_SPACE.some((space) => content.includes(space)) ||
    (role === "system" && content.includes(BILLING))
  )
    return null;
  return { role, content };
}

function moreOf(kwargs: unknown): Chat["more"] | null {
  if (kwargs === null) return {};
  if (!isFields(kwargs)) return null;
  const isPlain = (value: unknown): value is boolean | string | null =>
    value === null || typeof value === "boolean" || typeof value === "string";
  const isOwn = (name: string): boolean =>
    RESERVED.has(name) || name.endsWith("_token") || Object.hasOwn(FUNCTIONS, name);
  const entries = Object.entries(kwargs);
  if (entries.length > GATEWAY_CHAT_VALUES_MAX) return null;
  const given = entries.filter((entry): entry is [string, boolean | string | null] =>
    isPlain(entry[1]),
  );
  if (given.length < entries.length || given.some(([name]) => isOwn(name))) return null;
  return Object.fromEntries(given);
}

/** Variables that an engine sets itself, or does not pass on. */
const RESERVED: ReadonlySet<string> = new Set([
  "messages",
  "tools",
  "documents",
  "add_generation_prompt",
  "continue_final_message",
  "chat_template",
  "conversation",
  "tokenize",
  "padding",
  "truncation",
  "max_length",
  "return_tensors",
  "return_dict",
  "tokenizer_kwargs",
]);

/** Orders the fields as vLLM does. undefined: the tools have fields that vLLM fills in, drops or writes differently. */
function toolsOf(tools: unknown): object[] | null | undefined {
  if (tools === null) return null;
  if (!Array.isArray(tools) || tools.length === 0) return undefined;
  let values = 0;
  const shown = tools.map((tool: unknown) => {
    if (!isFields(tool) || !hasOnly(tool, ["type", "function"])) return null;
    const { type, function: called } = tool;
    if (!isFields(called) || !hasOnly(called, ["name", "description", "parameters"])) return null;
    const { name, description, parameters } = called;
    if (!isFields(parameters)) return null;
    values += valuesIn(called);
    return { type, function: { name, description, parameters } };
  });
  if (shown.includes(null) || values > GATEWAY_CHAT_VALUES_MAX) return undefined;
  return shown as object[];
}

/** Name of a property that JavaScript puts before all others, and Python does not. */
const INDEX = /^(?:0|[1-9]\d*)$/;

/**
 * Infinite for a number, because Python writes 1.0 where JavaScript writes 1, for names that JavaScript orders, and for depth, to
 * protect the stack.
 */
function valuesIn(value: unknown, depth = 0): number {
  if (typeof value === "number" || depth > TOOL_DEPTH_MAX) return Infinity;
  if (typeof value !== "object" || value === null) return 1;
  let count = 1;
  if (!Array.isArray(value) && Object.keys(value).some((name) => INDEX.test(name))) return Infinity;
  for (const one of Object.values(value)) count += valuesIn(one, depth + 1);
  return count;
}

/** Returns null where the template refuses the chat, or needs what ours cannot do. */
export function render({ template, special }: Rendering, chat: Chat): string | null {
  const { messages, tools, more, addGenerationPrompt } = chat;
  const given = { messages, tools, documents: null, add_generation_prompt: addGenerationPrompt };
  try {
    return template.render({ ...special, ...more, ...given, ...FUNCTIONS });
  } catch {
    return null;
  }
}
