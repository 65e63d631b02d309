// Owns the dialects of the APIs that clients speak, told by the path: the form of an error, and of an error inside a stream.

/** `openai`: chat, completions and all paths not named here; `anthropic`: the Messages API; `responses`: OpenAI's Responses API. */
export type Dialect = "openai" | "anthropic" | "responses";

const MESSAGES = /^\/v1\/messages(?:[/?]|$)/;
const RESPONSES = /^\/v1\/responses(?:[/?]|$)/;

/** `path`: with or without a query. */
export function dialectOf(path: string): Dialect {
  if (MESSAGES.test(path)) return "anthropic";
  return RESPONSES.test(path) ? "responses" : "openai";
}

/** One error as the gateway reports it; `type`: its name in vLLM's form of the OpenAI API. */
export interface ApiError {
  code: number;
  type: string;
  message: string;
  /** The field of the request that is wrong; undefined: none in particular. */
  param?: string | undefined;
}

/** Error types of the Messages API by status; other statuses below 500 are `invalid_request_error`. */
const ANTHROPIC_TYPES: ReadonlyMap<number, string> = new Map([
  [401, "authentication_error"],
  [403, "permission_error"],
  [404, "not_found_error"],
  [413, "request_too_large"],
  [429, "rate_limit_error"],
  [503, "overloaded_error"],
]);

const anthropicType = (code: number): string =>
  ANTHROPIC_TYPES.get(code) ?? (code >= 500 ? "api_error" : "invalid_request_error");

/** Returns the body of an error answer. */
export function errorBody(dialect: Dialect, error: ApiError): string {
  const { code, type, message, param = null } = error;
  if (dialect === "anthropic") {
    return JSON.stringify({ type: "error", error: { type: anthropicType(code), message } });
  }
  return JSON.stringify({ error: { message, type, param, code } });
}

/**
 * Returns an event that ends a stream with an error, to be sent between two events. The `anthropic` SDK raises for an event
 * named `error`; the `openai` SDK raises for data with a field `error`, whatever the event's name.
 */
export function errorEvent(dialect: Dialect, error: ApiError): string {
  const { code, type, message, param = null } = error;
  if (dialect === "anthropic") return `event: error\ndata: ${errorBody(dialect, error)}\n\n`;
  const body = { error: { message, type, param, code } };
  if (dialect === "openai") return `data: ${JSON.stringify(body)}\n\n`;
  const event = { type: "error", code: String(code), message, param, ...body };
  return `event: error\ndata: ${JSON.stringify(event)}\n\n`;
}
