// Owns the ids of a request's spans, chosen at its beginning because vaults refer to them before it ends.
import { nowMs, wallClockMs } from "../../base/time.ts";
import { contextBytes, newSpanId, newTraceId, parseTraceparent } from "../../base/trace-context.ts";
import type { TraceContext } from "../../base/trace-context.ts";

export interface RequestTrace {
  readonly traceId: string;
  /** The client's span; null: the client named none. */
  readonly parentId: string | null;
  readonly requestId: string;
  readonly lookupId: string;
  readonly fetchId: string;
  /** Contexts sent to vaults with look-ups and fetches. */
  readonly lookup: Buffer;
  readonly fetch: Buffer;
}

/** Returns null when the client does not want the request traced. */
export function traceOf(traceparent: string): RequestTrace | null {
  const client = parseTraceparent(traceparent);
  if (client?.isSampled === false) return null;
  const traceId = client?.traceId ?? newTraceId();
  const [requestId, lookupId, fetchId] = [newSpanId(), newSpanId(), newSpanId()];
  return {
    traceId,
    parentId: client?.spanId ?? null,
    requestId,
    lookupId,
    fetchId,
    lookup: contextBytes({ traceId, spanId: lookupId }),
    fetch: contextBytes({ traceId, spanId: fetchId }),
  };
}

/** A finished batch of saves; it has a trace of its own, because it holds blocks of many requests. */
export interface Stored extends TraceContext {
  vault: string;
  /** Milliseconds since 1970. */
  at: number;
  tookMs: number;
  records: number;
  /** Records that the vault took; `bytes` are theirs. */
  taken: number;
  bytes: number;
}

/** A batch that is being sent. */
export class StoreTrace {
  /** Context sent to the vault with the batch. */
  readonly context: Buffer;
  readonly #of: TraceContext = { traceId: newTraceId(), spanId: newSpanId() };
  readonly #at = wallClockMs();
  readonly #begunMs = nowMs();

  constructor() {
    this.context = contextBytes(this.#of);
  }

  ended(what: Pick<Stored, "vault" | "records" | "taken" | "bytes">): Stored {
    return { ...this.#of, ...what, at: this.#at, tookMs: nowMs() - this.#begunMs };
  }
}
