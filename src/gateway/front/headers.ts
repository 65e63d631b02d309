// Owns which headers pass through the gateway: all but those that belong to one connection.
import type { IncomingHttpHeaders } from "node:http";
import type { EngineAccess } from "../engines/access.ts";

/** RFC 9110, 7.6.1. The sender sets `content-length`, and the gateway itself answered `expect`. */
const HOP: ReadonlySet<string> = new Set([
  "connection",
  "content-length",
  "expect",
  "host",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);

/** Returns the headers that a `connection` header names, because they belong to that connection, too. */
function namedBy(connection: string | string[] | undefined): string[] {
  return String(connection ?? "")
    .toLowerCase()
    .split(",")
    .map((name) => name.trim());
}

/** Which of a client's headers an engine gets. */
export interface Passage {
  /** Headers meant for the gateway itself. */
  own: readonly string[];
  /** Whether only the headers of `SAFE` pass, because a client may not speak to the engine beyond its prompt. */
  isNarrow: boolean;
  /** Whether the engine must answer uncompressed, because its answer is metered. */
  isMetered: boolean;
}

export const EVERYTHING: Passage = { own: [], isNarrow: false, isMetered: false };

/**
 * Headers of a tenant that reach an engine. Others may change what it does: vLLM 0.32 takes a priority, a data-parallel rank and
 * an adapter from headers, and later releases a salt.
 */
const SAFE: ReadonlySet<string> = new Set([
  "accept",
  "accept-encoding",
  "accept-language",
  "anthropic-beta",
  "anthropic-version",
  "content-encoding",
  "content-type",
  "traceparent",
  "tracestate",
  "user-agent",
  "x-request-id",
]);

/** Whether a header, by its name in lower case, belongs to one connection. */
export const ofConnection = (name: string): boolean => HOP.has(name);

/** Whether a header, by its name in lower case, reaches the engine. */
export const passes = (name: string, { own, isNarrow, isMetered }: Passage): boolean =>
  !HOP.has(name) &&
  !own.includes(name) &&
  !(isMetered && name === "accept-encoding") &&
  (!isNarrow || SAFE.has(name));

/** A client's headers, names and values in turn, and what its `connection` header says. */
interface Given {
  rawHeaders: readonly string[];
  headers: Pick<IncomingHttpHeaders, "connection">;
}

/** Returns names and values in turn, in their order; with the engine's own key where the client's key stays here. */
export function headersToEngine(
  { rawHeaders: raw, headers: { connection } }: Given,
  passage: Passage,
  access: EngineAccess,
): string[] {
  const named = namedBy(connection);
  const passed: string[] = [];
  for (let at = 0; at + 1 < raw.length; at += 2) {
    const name = (raw[at] ?? "").toLowerCase();
    if (passes(name, passage) && !named.includes(name))
      passed.push(raw[at] ?? "", raw[at + 1] ?? "");
  }
  if (passage.isMetered) passed.push("accept-encoding", "identity");
  if (passage.own.length > 0) passed.push(...access.fields);
  return passed;
}

/** Headers for pages of other origins, which the gateway sets by its own setting (cors.ts). */
const OF_PAGES = /^access-control-/;

/** Headers of an answer that name a place. */
const PLACES = ["location", "content-location"];
const SOMEWHERE = "http://gateway";

/** Returns a place without the host, so that no client is sent to an engine's own address; null: it has none. */
function placeHere(place: string): string | null {
  if (!URL.canParse(place, SOMEWHERE)) return null;
  const { pathname, search } = new URL(place, SOMEWHERE);
  // Two slashes would begin a host.
  return `${pathname.replace(/^\/+/, "/")}${search}`;
}

/** Passes an answer's length, because its body passes byte for byte. */
export function headersToClient(headers: IncomingHttpHeaders): Record<string, string | string[]> {
  const own = namedBy(headers.connection);
  const passed: Record<string, string | string[]> = {};
  for (const [name, value] of Object.entries(headers)) {
    const isOurs = name !== "content-length" && (HOP.has(name) || own.includes(name));
    if (!isOurs && value !== undefined && !OF_PAGES.test(name)) passed[name] = value;
  }
  for (const name of PLACES) {
    const { [name]: place } = passed;
    if (place === undefined) continue;
    const here = placeHere(String(place));
    if (here === null) delete passed[name];
    else passed[name] = here;
  }
  return passed;
}
