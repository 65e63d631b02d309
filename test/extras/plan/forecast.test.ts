// Owns the proof that forecasts are what a replay of the same requests through the real store gives, within 10 points of hit rate.
import { readFileSync } from "node:fs";
import { afterEach, describe, expect, test } from "vitest";
import type { StoreId } from "../../../src/base/native.ts";
import { closeStore, createStore, storeLookup } from "../../../src/base/native.ts";
import { Forecaster } from "../../../src/extras/plan/forecast.ts";
import type { ForecastOptions, TraceForecast } from "../../../src/extras/plan/forecast.ts";
import { readRequest, TRACE_BLOCK_TOKENS } from "../../../src/extras/plan/trace.ts";
import type { TracedRequest } from "../../../src/extras/plan/trace.ts";
import { storePut, storeTouch } from "../../support/native.ts";
import { HEADER_BYTES, NAMESPACE, keysOf, makeRecord } from "../../support/records.ts";
import type { TestRecord } from "../../support/records.ts";

const MIB = 1024 ** 2;
const PAYLOAD_BYTES = 8_192;
const RECORD_BYTES = PAYLOAD_BYTES + HEADER_BYTES;
/** A test holds so many made records; a long trace makes them again. */
const MADE_MAX = 50_000;
const POINTS_MAX = 0.1;

const OPTIONS: ForecastOptions = {
  blockTokens: TRACE_BLOCK_TOKENS,
  sizes: [Infinity],
  engineTokens: 0,
  computeS: null,
  restoreS: [],
};

function forecastOf(requests: readonly TracedRequest[], options = {}): TraceForecast {
  const forecaster = new Forecaster({ ...OPTIONS, ...options });
  for (const request of requests) forecaster.take(request);
  return forecaster.result();
}

/** Whole numbers below `below`, the same for a seed (xorshift). */
function dice(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % below;
  };
}

/** Conversations that grow turn by turn, many at a time; all begin alike. */
function conversations(count: number, seed: number): TracedRequest[] {
  const next = dice(seed);
  let id = 8;
  const open = Array.from({ length: 60 }, () => [0, 1, 2, 3]);
  return Array.from({ length: count }, () => {
    const at = next(open.length);
    const turns = open[at] ?? [];
    const grown = [...turns, ...Array.from({ length: 1 + next(4) }, () => (id += 1))];
    open[at] = grown.length > 40 ? [0, 1, 2, 3] : grown;
    return { tokens: grown.length * TRACE_BLOCK_TOKENS - 100, blocks: grown };
  });
}

/** Documents, some asked about far more often than others. */
function documents(count: number, seed: number): TracedRequest[] {
  const next = dice(seed);
  let id = 1_000_000;
  return Array.from({ length: count }, () => {
    const document = Math.floor(300 * (next(1000) / 1000) ** 3);
    const body = Array.from({ length: 12 }, (_, at) => document * 100 + at);
    const blocks = [...body, (id += 1)];
    return { tokens: blocks.length * TRACE_BLOCK_TOKENS, blocks };
  });
}

const stores: StoreId[] = [];

afterEach(() => {
  for (const store of stores.splice(0)) closeStore(store);
});

/** Share of the prompt tokens that the store gave back: asked, fetched, and what was missing stored, as a sidecar does. */
function replay(requests: readonly TracedRequest[], maxBytes: number): number {
  const store = createStore({ maxBytes, maxRecordBytes: MIB, recordClass: 1 });
  stores.push(store);
  const made = new Map<number, TestRecord>();
  const recordOf = (id: number): TestRecord => {
    const record = made.get(id) ?? makeRecord(id, { payloadBytes: PAYLOAD_BYTES });
    if (made.size >= MADE_MAX) made.clear();
    made.set(id, record);
    return record;
  };
  let [hits, all] = [0, 0];
  for (const { tokens, blocks } of requests) {
    const records = blocks.map(recordOf);
    const keys = keysOf(records);
    const held = storeLookup(store, NAMESPACE, keys);
    let count = 0;
    while (count < blocks.length && ((held[count >> 3] ?? 0) >> (count & 7)) % 2 === 1) count += 1;
    if (count > 0) storeTouch(store, NAMESPACE, keysOf(records.slice(0, count)));
    for (const { key, record } of records) storePut(store, NAMESPACE, key, record);
    all += tokens;
    hits += Math.min(tokens, count * TRACE_BLOCK_TOKENS);
  }
  return hits / all;
}

describe.each([
  ["conversations", conversations(900, 0x5eed)],
  ["documents", documents(900, 0xd0c)],
])("%s", (_name, requests) => {
  test.each([8, 12, 16])("in %i MiB come back as forecast", (size) => {
    const maxBytes = size * MIB;
    const fits = (maxBytes / RECORD_BYTES) * TRACE_BLOCK_TOKENS;
    const { tokens, sizes } = forecastOf(requests, { sizes: [fits] });
    const forecast = (sizes[0]?.hitTokens ?? 0) / tokens;
    const seen = replay(requests, maxBytes);
    expect(seen).toBeGreaterThan(0.05);
    expect(Math.abs(forecast - seen), `forecast ${forecast}, seen ${seen}`).toBeLessThan(
      POINTS_MAX,
    );
  });
});

/** `TIERKV_TEST_TRACE=FILE`: a trace of one's own, in vaults of so many blocks. Minutes. */
const TRACE = process.env["TIERKV_TEST_TRACE"];

test.skipIf(TRACE === undefined).each([4000, 15_000, 30_000])(
  "the trace comes back as forecast in %i blocks",
  (count) => {
    const lines = readFileSync(TRACE!, "utf8").split("\n");
    const requests = lines.map((line, at) => readRequest(line, `${TRACE}:${at + 1}`));
    const all = requests.filter((request) => request !== null);
    const { tokens, sizes } = forecastOf(all, { sizes: [count * TRACE_BLOCK_TOKENS] });
    const forecast = (sizes[0]?.hitTokens ?? 0) / tokens;
    const seen = replay(all, count * RECORD_BYTES);
    process.stdout.write(`${count} blocks: forecast ${forecast}, seen ${seen}\n`);
    expect(Math.abs(forecast - seen)).toBeLessThan(POINTS_MAX);
  },
  600_000,
);

test("a block helps only where all before it are held", () => {
  const request = (...blocks: number[]): TracedRequest => ({
    tokens: blocks.length * TRACE_BLOCK_TOKENS,
    blocks,
  });
  // Block 1 is the longest unused when it is asked for again, though 3 was used just now.
  const requests = [request(1, 2), request(4, 5), request(3), request(1, 3)];
  const [two, all] = forecastOf(requests, { sizes: [2 * TRACE_BLOCK_TOKENS, Infinity] }).sizes;
  expect(two?.hitTokens).toBe(0);
  expect(all?.hitTokens).toBe(2 * TRACE_BLOCK_TOKENS);
});

test("what the engine holds itself is not the vault's, and a restore that is slower saves nothing", () => {
  const long = Array.from({ length: 10 }, (_, at) => at);
  const asked = { tokens: 10 * TRACE_BLOCK_TOKENS, blocks: long };
  const other = { tokens: 20 * TRACE_BLOCK_TOKENS, blocks: long.map((id) => 100 + id) };
  const computeS = (tokens: number): number => tokens / 1000;
  const restoreS = [(tokens: number) => tokens / 4000, (tokens: number) => tokens / 500];
  const options = { engineTokens: 10 * TRACE_BLOCK_TOKENS, computeS, restoreS };
  const forecast = forecastOf([asked, asked, other, asked], options);
  expect(forecast).toMatchObject({
    requests: 4,
    engineHitTokens: 5120,
    distinctTokens: 20 * TRACE_BLOCK_TOKENS,
  });
  expect(forecast.sizes).toEqual([{ hitTokens: 5120, savedS: [5.12 - 1.28, 0] }]);
});

test("lines of Mooncake's traces are read; others are refused with their place", () => {
  const line =
    '{"timestamp": 3000, "input_length": 915, "output_length": 355, "hash_ids": [0, 462]}';
  expect(readRequest(line, "t:1")).toEqual({ tokens: 915, blocks: [0, 462] });
  expect(readRequest("", "t:2")).toBe(null);
  expect(() => readRequest("{", "t:3")).toThrow("t:3: cannot be read: it is no JSON");
  expect(() => readRequest('{"input_length": 0}', "t:4")).toThrow("input_length");
  expect(() => readRequest('{"input_length": 5, "hash_ids": ["a"]}', "t:5")).toThrow("hash_ids");
});
