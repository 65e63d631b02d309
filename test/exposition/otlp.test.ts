// Owns the proof that a request's spans reach a collector, under its client's trace, and that a collector that fails costs nothing.
import { join } from "node:path";
import { expect, test } from "vitest";
import { SPANS_QUEUED_MAX } from "../../src/base/limits/seen.ts";
import { newSidecarCounters } from "../../src/base/metrics.ts";
import type { SidecarCounters } from "../../src/base/metrics.ts";
import { OtlpExporter } from "../../src/exposition/otlp.ts";
import { spansOf } from "../../src/exposition/spans.ts";
import type { Span } from "../../src/exposition/spans.ts";
import type { Ended } from "../../src/sidecar/trace/decisions.ts";
import { attribute, openCollector } from "../support/collector.ts";
import { Program } from "../support/command-line.ts";
import { openScene, saveAll } from "../support/scene.ts";
import type { Scene } from "../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, logger, until } from "../support/vaults.ts";

const PAGE = 8192;
const CLIENT = "0af7651916cd43dd8448eb211c80319c";
const PARENT = "b7ad6b7169203331";

function openExporter(endpoint: string): { exporter: OtlpExporter; counters: SidecarCounters } {
  const counters = newSidecarCounters();
  const exporter = new OtlpExporter({
    endpoint,
    service: "tierkv-sidecar",
    version: "1",
    counters,
    logger,
  });
  return { exporter: closeAfterTest(exporter), counters };
}

/** What one restore ended as. */
async function restore(scene: Pick<Scene, "engine">, traceparent: string): Promise<void> {
  const { engine } = scene;
  engine.traceparent = traceparent;
  const plan = engine.prefetch(hashesOf(makeBlocks("a", 10, PAGE)));
  await engine.done(plan);
  engine.scheduler.send({ t: "release", req: "request", plan, tokens: 160, load_us: 2000 });
}

async function endedOnce(traceparent = ""): Promise<Ended> {
  const all: Ended[] = [];
  const scene = await openScene({ onEnded: (one) => all.push(one) });
  await saveAll(scene, makeBlocks("a", 10, PAGE));
  await restore(scene, traceparent);
  await until(() => all.length === 1, "the end of the request");
  return all[0]!;
}

test("the program sends look-up, fetch and load of a request under its client's trace", async () => {
  const { endpoint, calls, spans } = await openCollector();
  const home = testDirectory();
  const env = { HOME: home, XDG_RUNTIME_DIR: home, OTEL_EXPORTER_OTLP_ENDPOINT: `${endpoint}/` };
  const program = new Program(["sidecar", "--json"], { env });
  closeAfterTest({
    close: async () => {
      program.signal("SIGTERM");
      await program.ended();
    },
  });
  await program.firstResult();
  const socket = join(home, "tierkv", "sidecar.sock");
  const writer = await FakeEngine.start(socket);
  writer.save(makeBlocks("a", 10, PAGE));
  const reader = await FakeEngine.start(socket, { engine: "engine-2" });
  let lookups = 0;
  await until(async () => {
    const view = await reader.done(reader.prefetch(hashesOf(makeBlocks("a", 10, PAGE))));
    reader.release(view.plan);
    lookups += 1;
    return view.placed.get(0)?.length === 10;
  }, "all blocks to be held");
  await restore({ engine: reader }, `00-${CLIENT}-${PARENT}-01`);
  const mine = (): Span[] => spans().filter(({ traceId }) => traceId === CLIENT);
  await until(() => mine().length > 0, "the spans of the client's trace");

  expect(calls[0]).toMatchObject({ path: "/v1/traces", type: "application/json" });
  const [request, ...parts] = mine();
  expect([request?.name, request?.parentSpanId]).toEqual(["tierkv.request", PARENT]);
  expect(parts.map(({ name }) => name)).toEqual(["tierkv.lookup", "tierkv.fetch", "tierkv.load"]);
  for (const { parentSpanId } of parts) expect(parentSpanId).toBe(request?.spanId);
  expect(attribute(request, "gen_ai.usage.cache_read.input_tokens")).toEqual({ intValue: "160" });
  expect(attribute(parts[1], "tierkv.bytes")).toEqual({ intValue: String(10 * PAGE) });
  const times = [request!, ...parts].map((span) => [
    BigInt(span.startTimeUnixNano),
    BigInt(span.endTimeUnixNano),
  ]);
  for (const [from, to] of times) expect(from! <= to!).toBe(true);
  // Its own trace for each request that came without one.
  const others = spans().filter(
    ({ traceId, name }) => traceId !== CLIENT && name === "tierkv.request",
  );
  expect(new Set(others.map(({ traceId }) => traceId)).size).toBe(lookups);
});

test("what came from a vault names it, and what missed says why", async () => {
  const all: Ended[] = [];
  const scene = await openScene({ onEnded: (one) => all.push(one) });
  await saveAll(scene, makeBlocks("a", 10, PAGE));
  const { endpoint, spans } = await openCollector();
  const { exporter } = openExporter(endpoint);
  const reader = await FakeEngine.start(scene.sidecar.socketPath, { engine: "engine-2" });
  await restore({ engine: reader }, "");
  await reader.done(reader.prefetch(hashesOf(makeBlocks("unknown", 2, PAGE))));
  await until(() => all.length === 2, "the end of both");
  for (const ended of all) exporter.add(spansOf(ended));
  await exporter.close();
  const fetched = spans().find(({ name }) => name === "tierkv.fetch");
  const vault = { stringValue: scene.proxy.address };
  expect(attribute(fetched, "tierkv.vault")).toEqual({ arrayValue: { values: [vault] } });
  const missed = spans().filter(({ name }) => name === "tierkv.request")[1];
  expect(attribute(missed, "tierkv.miss.reason")).toEqual({ stringValue: "never_stored" });
});

test("a client that does not sample gets no spans, and what is no context counts as none", async () => {
  const unsampled = await endedOnce(`00-${CLIENT}-${PARENT}-00`);
  const { endpoint, spans } = await openCollector();
  const { exporter } = openExporter(endpoint);
  exporter.add(spansOf(unsampled));
  const wrong = await endedOnce(`00-${"0".repeat(32)}-${PARENT}-01`);
  exporter.add(spansOf(wrong));
  await exporter.close();
  expect(spans()).toHaveLength(4);
  expect(spans()[0]?.traceId).not.toBe("0".repeat(32));
  expect(spans()[0]?.parentSpanId).toBeUndefined();
});

test("a collector that never answers holds nothing up: spans beyond the queue are counted", async () => {
  const ended = await endedOnce();
  const { endpoint, calls } = await openCollector(() => {});
  const { exporter, counters } = openExporter(endpoint);
  const spans = 4 * Math.ceil(SPANS_QUEUED_MAX / 4 + 10);
  for (let at = 0; at < spans; at += 4) exporter.add(spansOf(ended));
  expect(counters.get("spans_dropped")).toBe(spans - SPANS_QUEUED_MAX);
  await until(() => calls.length === 1, "the first call");
  await exporter.close();
  expect(counters.get("spans_dropped")).toBe(spans);
  expect(counters.get("spans_sent")).toBe(0);
});

test.each(["refuses", "is not there"])("a collector that %s costs its spans alone", async (how) => {
  const ended = await endedOnce();
  const { endpoint } = await openCollector((_, response) => response.writeHead(503).end());
  const { exporter, counters } = openExporter(how === "refuses" ? endpoint : "http://127.0.0.1:1");
  exporter.add(spansOf(ended));
  await until(() => counters.get("spans_dropped") === 4, "the spans to be counted");
});
