// Owns what a request's spans say, in the JSON form of OTLP.
import type { Ended } from "../sidecar/trace/decisions.ts";
import { randomId } from "../time.ts";

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

const INTERNAL = 1;
const TRACE_ID_BYTES = 16;
const SPAN_ID_BYTES = 8;
const NS_PER_MS = 1e6;
/** https://www.w3.org/TR/trace-context: version, trace id, parent id, flags; later versions may append. */
const TRACEPARENT =
  /^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})/;
const SAMPLED = 1;

interface Part {
  name: string;
  fromMs: number;
  toMs: number;
  attributes: Record<string, Value>;
}

/** `tierkv.request` with its look-up, fetch and load; none where its client asked for none. */
export function spansOf(ended: Ended): Span[] {
  const [, client, parent, flags = "01"] = TRACEPARENT.exec(ended.account.traceparent) ?? [];
  if ((parseInt(flags, 16) & SAMPLED) === 0) return [];
  const traceId = client ?? randomId(TRACE_ID_BYTES);
  const atMs = ended.account.at;
  const span = ({ name, fromMs, toMs, attributes }: Part, parentSpanId?: string): Span => ({
    traceId,
    spanId: randomId(SPAN_ID_BYTES),
    ...(parentSpanId === undefined ? {} : { parentSpanId }),
    name,
    kind: INTERNAL,
    startTimeUnixNano: String(Math.round((atMs + fromMs) * NS_PER_MS)),
    endTimeUnixNano: String(Math.round((atMs + toMs) * NS_PER_MS)),
    attributes: Object.entries(attributes).flatMap(([key, value]) =>
      value === null ? [] : [{ key, value: valueOf(value) }],
    ),
  });
  const request = span(requestOf(ended), parent);
  return [request, ...partsOf(ended).map((part) => span(part, request.spanId))];
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

function partsOf({ account, decidedMs, endedMs }: Ended): Part[] {
  const { lookup, fetch, load } = account.actual;
  const parts: Part[] = [];
  const add = (name: string, fromMs: number, ms: number | null, attributes: Part["attributes"]) => {
    if (ms !== null) parts.push({ name, fromMs, toMs: fromMs + ms, attributes });
  };
  add("tierkv.lookup", 0, lookup, {
    "tierkv.tokens.held": account.heldTokens,
    "tierkv.miss.reason": account.miss,
  });
  add("tierkv.fetch", decidedMs, account.choice === "recomputed" ? null : fetch, {
    "tierkv.bytes": account.bytes,
    "tierkv.vault": account.vaults,
    "tierkv.tokens.placed": account.placedTokens,
    "tierkv.end": account.end,
  });
  add("tierkv.load", endedMs - (load ?? 0), load, {
    "tierkv.tokens.restored": account.loadedTokens,
  });
  return parts;
}

/** int64 is a text in protobuf's JSON. */
function valueOf(value: Exclude<Value, null>): object {
  if (typeof value === "number") return { intValue: String(Math.round(value)) };
  if (typeof value === "string") return { stringValue: value };
  return { arrayValue: { values: value.map(valueOf) } };
}
