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
} from "../../base/limits/gateway.ts";
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

/** A body that is let go as soon as no retry can need it: its room and its bytes. */
export class Held {
  #bytes: Buffer;
  readonly #budget: BodyBudget;
  #room: number;

  constructor(bytes: Buffer, budget: BodyBudget) {
    this.#bytes = bytes;
    this.#budget = budget;
    this.#room = bytes.length;
  }

  get bytes(): Buffer {
    return this.#bytes;
  }

  /** Takes the place of the bytes that came, in the same room. */
  replace(bytes: Buffer): void {
    if (this.#room > 0) this.#bytes = bytes;
  }

  /** Idempotent. */
  release(): void {
    this.#bytes = NO_BYTES;
    if (this.#room > 0) this.#budget.give(this.#room);
    this.#room = 0;
  }
}

const NO_BYTES = Buffer.alloc(0);

/** Reads a body that the caller releases. */
export async function holdBody(
  request: IncomingMessage,
  budget: BodyBudget,
): Promise<Held | BodyFailure> {
  const bytes = await readBody(request, budget);
  return typeof bytes === "string" ? bytes : new Held(bytes, budget);
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
const IS_FILE = /^content-disposition: *form-data *;.*\bfilename/im;
const HEAD_END = "\r\n\r\n";

/** Yields the parts of a form: a head, and where its content begins and ends. */
function* partsOf(
  body: Buffer,
  contentType: string | undefined,
): Generator<{ head: string; from: number; to: number }> {
  const [, quoted, plain] = FORM.exec(contentType ?? "") ?? [];
  const border = quoted ?? plain;
  if (border === undefined) return;
  const mark = `--${border}`;
  for (let at = body.indexOf(mark); at >= 0; at = body.indexOf(mark, at + mark.length)) {
    const end = body.indexOf(HEAD_END, at);
    if (end < 0) return;
    if (end - at > GATEWAY_FORM_MODEL_CHARS_MAX) continue;
    const from = end + HEAD_END.length;
    const to = body.indexOf(`\r\n${mark}`, end);
    yield { head: body.toString("latin1", at, end), from, to: to < 0 ? body.length : to };
  }
}

/** Returns the field `model` of a form, such as an audio file's; null: none. */
export function modelInForm(body: Buffer, contentType: string | undefined): string | null {
  for (const { head, from, to } of partsOf(body, contentType)) {
    if (!MODEL_PART.test(head)) continue;
    const text = body.toString("utf8", from, Math.max(from, to));
    return text === "" || text.length > GATEWAY_FORM_MODEL_CHARS_MAX ? null : text;
  }
  return null;
}

/** Fewest characters of a text that may be a picture or a sound, and those by which it is told. */
const MEDIA_CHARS_MIN = 256;
const MEDIA_HEAD = /^(?:data:[^,]{0,200};base64,)?[A-Za-z0-9+/_=-]*$/;

/** Fields that hold pictures, sounds and files, in the forms of OpenAI and Anthropic. */
const MEDIA_FIELDS: ReadonlySet<string> = new Set(["data", "url", "image_url", "file_data"]);

/** Whether a field's text is base64: long, and without a space or a line. */
const isMedia = (name: string, text: string): boolean =>
  MEDIA_FIELDS.has(name) &&
  text.length >= MEDIA_CHARS_MIN &&
  MEDIA_HEAD.test(text.slice(0, MEDIA_CHARS_MIN));

/**
 * Returns a body's bytes without pictures, sounds and files, which are no text. APIs put them in different fields: as a URL of
 * data (OpenAI), or as base64 alone (Anthropic's `source.data`, `input_audio.data`, `file_data`).
 */
export function textBytes(body: Buffer, parsed: unknown, contentType: string | undefined): number {
  if (parsed === null) return bytesOfFields(body, contentType);
  if (body.length < MEDIA_CHARS_MIN) return body.length;
  let bytes = body.length;
  // A list of its own, because a deeply nested body would end the stack.
  const open: unknown[] = [parsed];
  while (open.length > 0) {
    const value = open.pop();
    if (Array.isArray(value)) {
      // Neither token ids nor texts hold media.
      if (typeof value[0] === "object") for (const one of value) open.push(one);
      continue;
    }
    for (const [name, one] of Object.entries(fieldsOf(value))) {
      if (typeof one === "object") open.push(one);
      else if (typeof one === "string" && isMedia(name, one)) bytes -= one.length;
    }
  }
  return Math.max(0, bytes);
}

/** Returns the bytes of a form's parts that are no files; those of any other body. */
function bytesOfFields(body: Buffer, contentType: string | undefined): number {
  let bytes = body.length;
  for (const { head, from, to } of partsOf(body, contentType)) {
    if (IS_FILE.test(head)) bytes -= to - from;
  }
  return bytes;
}

/** Returns the fields of a JSON object, and none of any other value. */
export function fieldsOf(value: unknown): Fields {
  const isMap = typeof value === "object" && value !== null && !Array.isArray(value);
  return isMap ? (value as Fields) : {};
}
