// Owns reading a request's body whole, within a limit per body and one for all bodies together.
import type { IncomingMessage } from "node:http";
import {
  GATEWAY_BODIES_BYTES_MAX,
  GATEWAY_BODY_BYTES_MAX,
  GATEWAY_BODY_PARTS_MAX,
} from "../../limits/gateway.ts";
import type { Fields } from "../tokens/prompt.ts";

/** `large`: above the limit of one body; `full`: all bodies together reach theirs; `gone`: the client left. */
export type BodyFailure = "large" | "full" | "gone";

/** Bytes of the bodies held now. */
export class BodyBudget {
  readonly #bytesMax: number;
  bytes = 0;

  constructor(bytesMax: number = GATEWAY_BODIES_BYTES_MAX) {
    this.#bytesMax = bytesMax;
  }

  /** Returns false where no room is left. */
  take(bytes: number): boolean {
    if (this.bytes + bytes > this.#bytesMax) return false;
    this.bytes += bytes;
    return true;
  }

  give(bytes: number): void {
    this.bytes -= bytes;
  }
}

/** Reads a body. The caller gives the bytes of a whole body back to the budget; a failed read gives back its own. */
export function readBody(
  request: IncomingMessage,
  budget: BodyBudget,
): Promise<Buffer | BodyFailure> {
  const told = Number(request.headers["content-length"] ?? 0);
  if (told > GATEWAY_BODY_BYTES_MAX) return Promise.resolve("large");
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    const end = (result: Buffer | BodyFailure): void => {
      request.off("data", onData).off("end", onEnd).off("close", onClose);
      if (typeof result === "string") budget.give(bytes);
      resolve(result);
    };
    const onData = (chunk: Buffer): void => {
      if (bytes + chunk.length > GATEWAY_BODY_BYTES_MAX) return end("large");
      if (!budget.take(chunk.length)) return end("full");
      bytes += chunk.length;
      chunks.push(chunk);
    };
    const onEnd = (): void => end(Buffer.concat(chunks));
    const onClose = (): void => end("gone");
    request.on("data", onData).once("end", onEnd).once("close", onClose);
  });
}

const [QUOTE, BACKSLASH, LIST, OBJECT] = Buffer.from('"\\[{');

/** Whether a JSON text has more texts, lists and objects than GATEWAY_BODY_PARTS_MAX. */
function hasManyParts(body: Buffer): boolean {
  if (body.length <= GATEWAY_BODY_PARTS_MAX) return false;
  let parts = 0;
  for (let at = 0; at < body.length && parts <= GATEWAY_BODY_PARTS_MAX; at += 1) {
    const byte = body[at];
    if (byte === QUOTE || byte === LIST || byte === OBJECT) parts += 1;
    if (byte === QUOTE) at = endOfText(body, at + 1);
  }
  return parts > GATEWAY_BODY_PARTS_MAX;
}

/** Returns the place of a text's closing quote. */
function endOfText(body: Buffer, from: number): number {
  for (let at = body.indexOf('"', from); at >= 0; at = body.indexOf('"', at + 1)) {
    let escapes = 0;
    while (body[at - 1 - escapes] === BACKSLASH) escapes += 1;
    if (escapes % 2 === 0) return at;
  }
  return body.length;
}

/** Parses a JSON body; null: it is not JSON. Throws where parsing would hold up all other requests for seconds. */
export function parseBody(body: Buffer, contentType: string | undefined): unknown {
  if (body.length === 0 || contentType?.includes("json") === false) return null;
  if (hasManyParts(body)) throw new RangeError("too many texts, lists and objects");
  try {
    return JSON.parse(body.toString("utf8"));
  } catch {
    return null;
  }
}

/** Returns the model that a body names; null: none. */
export function modelOf(body: unknown): string | null {
  const { model } = fieldsOf(body);
  return typeof model === "string" ? model : null;
}

/** Returns the fields of a JSON object, and none of any other value. */
export function fieldsOf(value: unknown): Fields {
  const isMap = typeof value === "object" && value !== null && !Array.isArray(value);
  return isMap ? (value as Fields) : {};
}
