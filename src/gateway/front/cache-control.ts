// Owns what Anthropic's `cache_control` asks of vaults: a conversation's blocks are kept for as long as its longest mark says.
import { createHash } from "node:crypto";
import { CHAT, formOf, MESSAGES } from "../tokens/prompt.ts";
import type { Fields } from "../tokens/prompt.ts";
import { fieldsOf } from "./body.ts";
import type { Body } from "./keys.ts";
import { withField } from "./splice.ts";

/** Lifetimes that the API knows, in seconds, and the one of a mark without any. */
const TTLS: ReadonlyMap<unknown, number> = new Map([
  ["5m", 300],
  ["1h", 3600],
]);
const TTL_UNSAID = "5m";
const MARK = "cache_control";
const PARAMS = "kv_transfer_params";

/**
 * Returns the body with `keep_s` for the shim, and the name of the conversation as its session; the same body where it has no
 * mark, or says itself what the shim should do. `keeps`: whether any engine has a vault.
 */
export function withKeep(body: Body, path: string, keeps: () => boolean): Body {
  // Most requests have no mark, and reading all their messages for one takes longer than this search.
  if (!body.bytes.includes(MARK)) return body;
  const fields = fieldsOf(body.parsed);
  const form = formOf(path, fields);
  if (form !== MESSAGES && form !== CHAT) return body;
  const keepS = keptFor(fields);
  const params = fieldsOf(fields[PARAMS]);
  if (keepS === 0 || "tierkv" in params || !keeps()) return body;
  const isNamed = form === CHAT && typeof fields["session_id"] === "string";
  const session = isNamed ? {} : { session: conversationOf(fields) };
  const set = { ...params, tierkv: { report: false, ...session, keep_s: keepS } };
  return { bytes: withField(body.bytes, PARAMS, set), parsed: { ...fields, [PARAMS]: set } };
}

/** Returns the longest lifetime of a request's marks, in seconds; 0: it has none. */
function keptFor(fields: Fields): number {
  const { tools, system, messages } = fields;
  const turns = listOf(messages);
  const blocks = [...listOf(system), ...turns.flatMap(({ content }) => listOf(content))];
  const marked = [fields, ...listOf(tools), ...turns, ...blocks];
  const inner = blocks.flatMap(({ content }) => listOf(content));
  const times = [...marked, ...inner].map(({ [MARK]: mark }) => secondsOf(mark));
  return times.reduce((most, seconds) => Math.max(most, seconds), 0);
}

function listOf(value: unknown): Fields[] {
  return Array.isArray(value) ? value.map(fieldsOf) : [];
}

function secondsOf(mark: unknown): number {
  const { type, ttl = TTL_UNSAID } = fieldsOf(mark);
  return type === "ephemeral" ? (TTLS.get(ttl) ?? 0) : 0;
}

/** Names a conversation by its beginning, which all its turns share; marks move on with each turn. */
function conversationOf({ model, tools, system, messages }: Fields): string {
  const [first] = Array.isArray(messages) ? (messages as unknown[]) : [];
  const beginning = JSON.stringify([model, tools, system, first], (key, value: unknown) =>
    key === MARK ? undefined : value,
  );
  return `cache-${createHash("sha256").update(beginning).digest("hex").slice(0, 32)}`;
}
