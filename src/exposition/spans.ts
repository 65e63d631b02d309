// Owns the contents of spans in OTLP's JSON: a request at a sidecar, a batch of saves, and a vault's part of both.
import type { LaneSpan } from "../base/native.ts";
import { contextOf, newSpanId } from "../base/trace-context.ts";
import type { Ended } from "../sidecar/trace/decisions.ts";
import type { RequestTrace, Stored } from "../sidecar/trace/request-trace.ts";

type Value = string | number | readonly string[] | null;

export interface Span {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  kind: number;
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  attributes: { key: string; value: object }[];
}

const KINDS = { internal: 1, server: 2, client: 3 } as const;
const NS_PER_MS = 1e6;

interface Part {
  name: string;
  kind?: keyof typeof KINDS;
  /** Chosen before; absent: a new one. */
  spanId?: string;
  fromMs: number;
  toMs: number;
  attributes: Record<string, Value>;
}

interface Place {
  traceId: string;
  parentId: string | null;
  /** Origin of `fromMs` and `toMs`: ms since 1970. */
  atMs: number;
}

function spanOf(part: Part, { traceId, parentId, atMs }: Place): Span {
  const { name, kind = "internal", spanId = newSpanId(), fromMs, toMs, attributes } = part;
  return {
    traceId,
    spanId,
    ...(parentId === null ? {} : { parentSpanId: parentId }),
    name,
    kind: KINDS[kind],
    startTimeUnixNano: String(Math.round((atMs + fromMs) * NS_PER_MS)),
    endTimeUnixNano: String(Math.round((atMs + toMs) * NS_PER_MS)),
    attributes: Object.entries(attributes).flatMap(([key, value]) =>
      value === null ? [] : [{ key, value: valueOf(value) }],
    ),
  };
}

/** `tierkv.request` with its look-up, fetch and load; none where its client sent no trace context. */
export function spansOf(ended: Ended): Span[] {
  const { trace, account } = ended;
  if (trace === null) return [];
  const { traceId, parentId, requestId } = trace;
  const place = { traceId, parentId, atMs: account.at };
  const request = spanOf({ ...requestOf(ended), spanId: requestId }, place);
  const parts = partsOf(ended, trace);
  return [request, ...parts.map((part) => spanOf(part, { ...place, parentId: requestId }))];
}

/** `tierkv.store`, in a trace of its own because it serves many requests. */
export function spanOfStore(stored: Stored): Span {
  const { traceId, spanId, vault, at: atMs, tookMs, records, taken, bytes } = stored;
  const attributes = {
    "tierkv.vault": vault,
    "tierkv.records": records,
    "tierkv.records.done": taken,
    "tierkv.bytes": bytes,
  };
  const part = { name: "tierkv.store", kind: "client", fromMs: 0, toMs: tookMs } as const;
  return spanOf({ ...part, spanId, attributes }, { traceId, parentId: null, atMs });
}

/** `tierkv.vault.lookup`, `.fetch` or `.store`: a vault's part of a sidecar's call. */
export function spanOfVault(span: LaneSpan): Span {
  const { context, asked, begunMs: atMs, tookMs, records, done, bytes } = span;
  const { traceId, spanId: parentId } = contextOf(context);
  const attributes = {
    "tierkv.records": records,
    "tierkv.records.done": done,
    "tierkv.bytes": asked === "lookup" ? null : bytes,
  };
  const part = { name: `tierkv.vault.${asked}`, kind: "server", fromMs: 0, toMs: tookMs } as const;
  return spanOf({ ...part, attributes }, { traceId, parentId, atMs });
}

function requestOf({ account, reason, endedMs }: Ended): Part {
  const { startTokens, loadedTokens } = account;
  return {
    name: "tierkv.request",
    fromMs: 0,
    toMs: endedMs,
    attributes: {
      "gen_ai.request.id": account.req,
      "gen_ai.usage.cache_read.input_tokens": startTokens + (loadedTokens ?? 0),
      "tierkv.engine": account.engine,
      "tierkv.decision": account.choice,
      "tierkv.reason": reason,
      "tierkv.miss.reason": account.miss,
      "tierkv.tokens.own": startTokens,
      "tierkv.tokens.asked": account.askedTokens,
      "tierkv.tokens.restored": loadedTokens,
    },
  };
}

function partsOf(
  { account, decidedMs, endedMs }: Ended,
  { lookupId, fetchId }: RequestTrace,
): Part[] {
  const { lookup, fetch, load } = account.actual;
  const parts: Part[] = [];
  const add = (
    name: string,
    spanId: string,
    fromMs: number,
    ms: number | null,
    attributes: Part["attributes"],
  ): void => {
    if (ms !== null) parts.push({ name, spanId, fromMs, toMs: fromMs + ms, attributes });
  };
  add("tierkv.lookup", lookupId, 0, lookup, {
    "tierkv.tokens.held": account.heldTokens,
    "tierkv.miss.reason": account.miss,
  });
  add("tierkv.fetch", fetchId, decidedMs, account.choice === "recomputed" ? null : fetch, {
    "tierkv.bytes": account.bytes,
    "tierkv.vault": account.vaults,
    "tierkv.tokens.placed": account.placedTokens,
    "tierkv.end": account.end,
  });
  add("tierkv.load", newSpanId(), endedMs - (load ?? 0), load, {
    "tierkv.tokens.restored": account.loadedTokens,
  });
  return parts;
}

/** Writes int64 as text, as protobuf's JSON does. */
function valueOf(value: Exclude<Value, null>): object {
  if (typeof value === "number") return { intValue: String(Math.round(value)) };
  if (typeof value === "string") return { stringValue: value };
  return { arrayValue: { values: value.map(valueOf) } };
}
