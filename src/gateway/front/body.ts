// Owns reading a request's body: whole, within a limit of its own and one of all requests together.
import type { IncomingMessage } from "node:http";
import { GATEWAY_BODIES_BYTES_MAX, GATEWAY_BODY_BYTES_MAX } from "../../limits/gateway.ts";
import type { Fields } from "../tokens/prompt.ts";

/** `large`: above the limit of one; `full`: all together are; `gone`: the client left. */
export type BodyFailure = "large" | "full" | "gone";

/** Bytes of the bodies that are kept now. */
export class BodyBudget {
  readonly #bytesMax: number;
  bytes = 0;

  constructor(bytesMax: number = GATEWAY_BODIES_BYTES_MAX) {
    this.#bytesMax = bytesMax;
  }

  /** False: there is no room. */
  take(bytes: number): boolean {
    if (this.bytes + bytes > this.#bytesMax) return false;
    this.bytes += bytes;
    return true;
  }

  give(bytes: number): void {
    this.bytes -= bytes;
  }
}

/** The caller gives the bytes of a whole body back; those of one that failed were. */
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

/** A JSON body; null: it is none. */
export function parseBody(body: Buffer, contentType: string | undefined): unknown {
  if (body.length === 0 || contentType?.includes("json") === false) return null;
  try {
    return JSON.parse(body.toString("utf8"));
  } catch {
    return null;
  }
}

/** The model that a body asks for; null: it names none. */
export function modelOf(body: unknown): string | null {
  const { model } = fieldsOf(body);
  return typeof model === "string" ? model : null;
}

/** Of what is no JSON object, none. */
export function fieldsOf(value: unknown): Fields {
  const isMap = typeof value === "object" && value !== null && !Array.isArray(value);
  return isMap ? (value as Fields) : {};
}
