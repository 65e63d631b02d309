// Owns parsing a request: the body that an engine will get, its model and session, and the headers meant for the gateway.
import type { IncomingHttpHeaders } from "node:http";
import { GATEWAY_REQUEST_ID_CHARS_MAX } from "../../base/limits/gateway.ts";
import { sessionOf } from "../score/ring.ts";
import type { Asked } from "../score/router.ts";
import type { Refusal, Visit } from "./allowance.ts";
import { modelInForm, modelOf, parseBody, textBytes } from "./body.ts";
import { withKeep } from "./cache-control.ts";
import { EVERYTHING } from "./headers.ts";
import type { Passage } from "./headers.ts";
import { KEY_HEADERS, withTenant } from "./keys.ts";
import type { KeyHolder, Keys } from "./keys.ts";

/** Holder where the gateway needs no keys. */
const ANYBODY: unique symbol = Symbol("anybody");

export type Holder = KeyHolder | typeof ANYBODY;

/** Paths that an engine's clients call; the rest (`/sleep`, loading adapters, ...) is for the engine's operator. */
const PASSED =
  /^\/(?:v1\/(?!(?:un)?load_lora_adapter)|v2\/|(?:tokenize|detokenize|pooling|classify|score|generative_scoring|rerank|embed|invocations|version|inference\/v1\/generate|cohere\/v2\/chat)$)/;
/** Another proxy before an engine could resolve such a path to one that is not passed. */
const DOTS = /[\\/]\.{1,2}(?:[\\/]|$)/;
/** Engines ignore `cache_salt` there, so tenants would share blocks. */
const UNSALTED = /^\/v2\/embed$/;

export function isPassed(path: string, holder: Holder): boolean {
  const isSalted = holder !== ANYBODY && holder.tenant !== null;
  const read = decoded(path);
  if (!PASSED.test(path) || !PASSED.test(read) || DOTS.test(read)) return false;
  return !(isSalted && UNSALTED.test(read));
}

/** Decodes a path as engines do; `otherwise` where it cannot be decoded. */
export function decoded(path: string, otherwise = ""): string {
  try {
    return decodeURIComponent(path);
  } catch {
    return otherwise;
  }
}

export interface Reading {
  bytes: Buffer;
  asked: Asked;
  passage: Passage;
}

/** null: no key, or an unknown one. */
export function holderOf(keys: Keys | null, headers: IncomingHttpHeaders): Holder | null {
  return keys === null ? ANYBODY : keys.holderOf(headers);
}

/** null: no tenant. */
export const tenantOf = (holder: Holder): string | null =>
  holder === ANYBODY ? null : holder.tenant;

/** Admits one request of that key; null: its key has no limits. */
export function enter(holder: Holder): Visit | Refusal | null {
  return holder === ANYBODY ? null : (holder.allowance?.enter() ?? null);
}

/**
 * Returns null for a body whose tenant cannot be set, because it is no JSON object. `keeps`: whether an engine has a
 * vault, in which what a request marks is kept; absent: it is not asked for.
 */
export function readingOf(
  bytes: Buffer,
  path: string,
  headers: IncomingHttpHeaders,
  holder: Holder,
  keeps: (() => boolean) | null = null,
): Reading | null {
  const type = headers["content-type"];
  const given = { bytes, parsed: parseBody(bytes, type) };
  const owned = holder === ANYBODY ? given : withTenant(given, holder, type);
  if (owned === null) return null;
  const body = keeps === null ? owned : withKeep(owned, path, keeps);
  const { parsed } = body;
  const id = String(headers["x-request-id"] ?? "");
  const session = sessionOf(headers, parsed);
  const asked = {
    id,
    path,
    body: parsed,
    bytes: textBytes(bytes, parsed, type),
    model: modelOf(parsed) ?? modelInForm(bytes, type),
    session,
    ...flowOf(headers, holder),
  };
  return { bytes: body.bytes, asked, passage: passageOf(holder) };
}

function passageOf(holder: Holder): Passage {
  if (holder === ANYBODY) return EVERYTHING;
  const { tenant, allowance } = holder;
  return { own: KEY_HEADERS, isNarrow: tenant !== null, isMetered: allowance !== null };
}

/** Reads the Inference Extension's headers. A key's holder shares as one, whatever the client says. */
function flowOf(
  headers: IncomingHttpHeaders,
  holder: Holder,
): Pick<Asked, "fairness" | "objective"> {
  const named = (name: string): string =>
    String(headers[`x-gateway-inference-${name}`] ?? "").slice(0, GATEWAY_REQUEST_ID_CHARS_MAX);
  const fairness = holder === ANYBODY ? named("fairness-id") : (holder.tenant ?? holder.name);
  return { fairness, objective: named("objective") };
}
