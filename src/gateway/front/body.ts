// Owns reading a request's body whole, within a limit per body and one for all bodies together.
import type { IncomingMessage } from "node:http";
import { totalmem } from "node:os";
import { getHeapStatistics } from "node:v8";
import {
  GATEWAY_BODIES_BYTES_MAX,
  GATEWAY_BODIES_SHARE,
  GATEWAY_BODY_BYTES_MAX,
  GATEWAY_BODY_COPIES,
  GATEWAY_BODY_PARTS_MAX,
  GATEWAY_FORM_MODEL_CHARS_MAX,
} from "../../limits/gateway.ts";
import type { Fields } from "../tokens/prompt.ts";
import { endOfText } from "./splice.ts";

/** `large`: above the limit of one body; `full`: all bodies together reach theirs; `gone`: the client left. */
export type BodyFailure = "large" | "full" | "gone";

/** Returns what bodies may take, in bytes: a share of the least of JavaScript's heap, the control group and the machine. */
function bodiesMax(): number {
  const { heap_size_limit: heap } = getHeapStatistics();
  const limits = [process.constrainedMemory(), totalmem(), heap].filter((bytes) => bytes > 0);
  return Math.min(GATEWAY_BODIES_BYTES_MAX, GATEWAY_BODIES_SHARE * Math.min(...limits));
}

/** Memory that bodies take now: their bytes, their text and the values in it. */
export class BodyBudget {
  readonly #bytesMax: number;
  bytes = 0;

  constructor(bytesMax: number = bodiesMax()) {
    this.#bytesMax = bytesMax;
  }

  /** Returns false where no room is left. */
  take(given: number): boolean {
    const bytes = GATEWAY_BODY_COPIES * given;
    if (this.bytes + bytes > this.#bytesMax) return false;
    this.bytes += bytes;
    return true;
  }

  give(bytes: number): void {
    this.bytes -= GATEWAY_BODY_COPIES * bytes;
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

const [QUOTE, LIST, OBJECT] = Buffer.from('"[{');

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

/** Returns the model that a body names; null: none, so that the engine serves its own. */
export function modelOf(body: unknown): string | null {
  const { model } = fieldsOf(body);
  return typeof model === "string" && model !== "" ? model : null;
}

const FORM = /^multipart\/form-data\b.*?\bboundary=(?:"([^"]{1,70})"|([^\s;]{1,70}))/i;
const MODEL_PART =
  /^content-disposition: *form-data *;(?!.*\bfilename).*\bname="?model"?(?:;|\r|$)/im;
const HEAD_END = "\r\n\r\n";

/** Returns the field `model` of a form, such as an audio file's; null: none. */
export function modelInForm(body: Buffer, contentType: string | undefined): string | null {
  const [, quoted, plain] = FORM.exec(contentType ?? "") ?? [];
  const border = quoted ?? plain;
  if (border === undefined) return null;
  const mark = `--${border}`;
  for (let at = body.indexOf(mark); at >= 0; at = body.indexOf(mark, at + mark.length)) {
    const from = body.indexOf(HEAD_END, at);
    if (from < 0 || from - at > GATEWAY_FORM_MODEL_CHARS_MAX) continue;
    if (!MODEL_PART.test(body.toString("latin1", at, from))) continue;
    const to = body.indexOf(`\r\n${mark}`, from);
    const text = body.toString("utf8", from + HEAD_END.length, Math.max(from, to));
    return text === "" || text.length > GATEWAY_FORM_MODEL_CHARS_MAX ? null : text;
  }
  return null;
}

/** A picture or a sound inside a JSON text. */
const DATA = Buffer.from("data:");
const QUOTE_MARK = Buffer.from('"');
const BASE64 = Buffer.from(";base64,");
/** Fewest characters of such a text that are left out of a count. */
const DATA_BYTES_MIN = 256;

/** Returns a JSON body's bytes without pictures and sounds, which are no text; 0 for a body that is no JSON. */
export function textBytes(body: Buffer, parsed: unknown): number {
  if (parsed === null) return 0;
  let bytes = body.length;
  for (let at = body.indexOf(DATA); at >= 0; at = body.indexOf(DATA, at)) {
    const end = body.indexOf(QUOTE_MARK, at);
    const mark = body.indexOf(BASE64, at);
    const to = end < 0 ? body.length : end;
    if (mark > at && mark < at + DATA_BYTES_MIN && to - at >= DATA_BYTES_MIN) bytes -= to - at;
    at = to;
  }
  return bytes;
}

/** Returns the fields of a JSON object, and none of any other value. */
export function fieldsOf(value: unknown): Fields {
  const isMap = typeof value === "object" && value !== null && !Array.isArray(value);
  return isMap ? (value as Fields) : {};
}
