// Owns which headers pass through the gateway: all but those that belong to one connection.
import type { IncomingHttpHeaders } from "node:http";

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
function named(connection: string | string[] | undefined): string[] {
  return String(connection ?? "")
    .toLowerCase()
    .split(",")
    .map((name) => name.trim());
}

/** Returns names and values in turn, in their order, without `left`, which were for the gateway. */
export function headersToEngine(
  raw: readonly string[],
  connection: string | undefined,
  left: readonly string[] = [],
): string[] {
  const own = [...named(connection), ...left];
  const passed: string[] = [];
  for (let at = 0; at + 1 < raw.length; at += 2) {
    const name = (raw[at] ?? "").toLowerCase();
    if (!HOP.has(name) && !own.includes(name)) passed.push(raw[at] ?? "", raw[at + 1] ?? "");
  }
  return passed;
}

/** Passes an answer's length, because its body passes byte for byte. */
export function headersToClient(headers: IncomingHttpHeaders): Record<string, string | string[]> {
  const own = named(headers.connection);
  const passed: Record<string, string | string[]> = {};
  for (const [name, value] of Object.entries(headers)) {
    const isOurs = name !== "content-length" && (HOP.has(name) || own.includes(name));
    if (!isOurs && value !== undefined) passed[name] = value;
  }
  return passed;
}
