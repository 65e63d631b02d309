// Owns the ids of a request's spans: chosen when it begins, because vaults name theirs as parts of them before it ends.
import { nowMs, wallClockMs } from "../../time.ts";
import { contextBytes, newSpanId, newTraceId, parseTraceparent } from "../../trace-context.ts";
import type { TraceContext } from "../../trace-context.ts";

export interface RequestTrace {
  readonly traceId: string;
  /** Its client's span; null: its client named none. */
  readonly parentId: string | null;
  readonly requestId: string;
  readonly lookupId: string;
  readonly fetchId: string;
  /** What vaults are told with look-ups and fetches. */
  readonly lookup: Buffer;
  readonly fetch: Buffer;
}

/** null: its client does not want it traced. */
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

/** A batch of saves, once it has ended: of many requests, and so a trace of its own. */
export interface Stored extends TraceContext {
  vault: string;
  /** Since 1970, ms. */
  at: number;
  tookMs: number;
  records: number;
  /** Of these, what the vault took, and their bytes. */
  taken: number;
  bytes: number;
}

/** A batch that is being sent. */
export class StoreTrace {
  /** What the vault is told with it. */
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
