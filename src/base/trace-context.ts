// Owns W3C trace context: the parsing of a client's `traceparent`, and the bytes that lanes carry.
import { randomId } from "./time.ts";

/** Ids of one span. */
export interface TraceContext {
  traceId: string;
  spanId: string;
}

const TRACE_ID_BYTES = 16;
const SPAN_ID_BYTES = 8;
/** https://www.w3.org/TR/trace-context: version, trace id, parent id, flags; later versions may append. */
const TRACEPARENT =
  /^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})/;
const SAMPLED = 1;

/** Returns null for an invalid context; `isSampled` says whether its sender wants spans. */
export function parseTraceparent(text: string): (TraceContext & { isSampled: boolean }) | null {
  const [, traceId, spanId, flags] = TRACEPARENT.exec(text) ?? [];
  if (traceId === undefined || spanId === undefined || flags === undefined) return null;
  return { traceId, spanId, isSampled: (parseInt(flags, 16) & SAMPLED) !== 0 };
}

export function newTraceId(): string {
  return randomId(TRACE_ID_BYTES);
}

export function newSpanId(): string {
  return randomId(SPAN_ID_BYTES);
}

/** Returns 25 bytes: trace, span and flags. Only sampled spans have a context. */
export function contextBytes({ traceId, spanId }: TraceContext): Buffer {
  return Buffer.from(`${traceId}${spanId}0${SAMPLED}`, "hex");
}

export function isContext(bytes: Buffer): boolean {
  return bytes.length === TRACE_ID_BYTES + SPAN_ID_BYTES + 1;
}

/** Parses the bytes of `contextBytes`. */
export function contextOf(bytes: Buffer): TraceContext {
  const spanAt = TRACE_ID_BYTES + SPAN_ID_BYTES;
  return {
    traceId: bytes.toString("hex", 0, TRACE_ID_BYTES),
    spanId: bytes.toString("hex", TRACE_ID_BYTES, spanAt),
  };
}
