// Owns the proof, on the real programs, that a restore is one trace from its client over the sidecar to the vault.
// @module-tag nightly
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { Span } from "../../src/exposition/spans.ts";
import { attribute, openCollector } from "../support/collector.ts";
import { Program } from "../support/command-line.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, until } from "../support/vaults.ts";

const PAGE = 8192;
const BLOCKS = 10;
const CLIENT = "0af7651916cd43dd8448eb211c80319c";
const PARENT = "b7ad6b7169203331";

/** A program of its own; `stop` ends it as a service manager does. */
async function start(
  name: "vault" | "sidecar",
  toml: string,
  env: Record<string, string> = {},
): Promise<{ ready: Record<string, unknown>; stop(): Promise<void> }> {
  const home = testDirectory();
  const config = join(home, "tierkv.toml");
  writeFileSync(config, toml);
  const around = { HOME: home, XDG_RUNTIME_DIR: home, ...env };
  const program = new Program([name, "--json", "--config", config], { env: around });
  const stop = async (): Promise<void> => {
    program.signal("SIGTERM");
    await program.ended();
  };
  closeAfterTest({ close: stop });
  return { ready: await program.firstResult(), stop };
}

const vaultToml = (endpoint: string): string =>
  `[cluster]\nrole = "kv_cold"\n[vault]\ninsecure_lan = true\nlisten = "127.0.0.1:0"\nmax_bytes = "64MiB"\n${endpoint}`;
const sidecarToml = (address: unknown, endpoint: string): string =>
  `[cluster]\nkv_cold = ["${String(address)}"]\n[restore]\nwhen = "always"\n[sidecar]\n${endpoint}`;
const endpointLine = (endpoint: string): string => `otlp_endpoint = "${endpoint}"\n`;

async function engineOf(sidecar: { ready: Record<string, unknown> }): Promise<FakeEngine> {
  return FakeEngine.start(String(sidecar.ready["socket"]));
}

/** All blocks come back, as a part of the client's trace. */
async function restore(engine: FakeEngine): Promise<void> {
  engine.traceparent = `00-${CLIENT}-${PARENT}-01`;
  const plan = engine.prefetch(hashesOf(makeBlocks("a", BLOCKS, PAGE)));
  const { placed } = await engine.done(plan);
  expect(placed.get(0)).toHaveLength(BLOCKS);
  engine.release(plan, { tokens: BLOCKS * 16, load_us: 2000 });
}

const times = ({ startTimeUnixNano, endTimeUnixNano }: Span): [bigint, bigint] => [
  BigInt(startTimeUnixNano),
  BigInt(endTimeUnixNano),
];

test("one trace goes from the client over the sidecar to the vault, and saves have their own", async () => {
  const { endpoint, spans } = await openCollector();
  const vault = await start("vault", vaultToml(endpointLine(endpoint)));
  const toml = sidecarToml(vault.ready["address"], endpointLine(endpoint));
  const saver = await start("sidecar", toml);
  (await engineOf(saver)).save(makeBlocks("a", BLOCKS, PAGE));
  const stored = (name: string): number =>
    spans()
      .filter((span) => span.name === name)
      .reduce((sum, span) => {
        const done = attribute(span, "tierkv.records.done") as { intValue: string };
        return sum + Number(done.intValue);
      }, 0);
  await until(() => stored("tierkv.vault.store") === BLOCKS, "the vault's spans of the saves");
  // What a sidecar stored itself it asks no vault for: another one restores.
  await saver.stop();
  expect(stored("tierkv.store")).toBe(BLOCKS);
  const batches = spans().filter(({ name }) => name === "tierkv.store");
  for (const part of spans().filter(({ name }) => name === "tierkv.vault.store")) {
    const batch = batches.find(({ spanId }) => spanId === part.parentSpanId);
    expect([batch?.traceId, batch?.service]).toEqual([part.traceId, "tierkv-sidecar"]);
  }

  await restore(await engineOf(await start("sidecar", toml)));
  const mine = (): ReturnType<typeof spans> => spans().filter(({ traceId }) => traceId === CLIENT);
  const names = (): string[] =>
    mine()
      .map(({ name }) => name)
      .sort();
  const all = ["fetch", "load", "lookup", "request", "vault.fetch", "vault.lookup"];
  await until(() => new Set(names()).size === all.length, "the spans of both");
  expect([...new Set(names())]).toEqual(all.map((name) => `tierkv.${name}`));

  const named = (name: string): ReturnType<typeof spans> =>
    mine().filter((span) => span.name === `tierkv.${name}`);
  const [request] = named("request");
  expect(request?.parentSpanId).toBe(PARENT);
  for (const step of ["lookup", "fetch"]) {
    const [own] = named(step);
    expect([own?.service, own?.parentSpanId]).toEqual(["tierkv-sidecar", request?.spanId]);
    for (const part of named(`vault.${step}`)) {
      expect([part.service, part.parentSpanId, part.kind]).toEqual([
        "tierkv-vault",
        own?.spanId,
        2,
      ]);
      // One machine, one clock: to the millisecond that the account is rounded to.
      const [[from], [begun, ended]] = [times(own!), times(part)];
      expect(begun >= from - 2_000_000n && ended >= begun).toBe(true);
    }
  }
  const bytes = named("vault.fetch").map(
    (span) => attribute(span, "tierkv.bytes") as { intValue: string },
  );
  const sum = bytes.reduce((all_, { intValue }) => all_ + Number(intValue), 0);
  expect(sum).toBeGreaterThan(BLOCKS * PAGE);
});

test("the vault of a machine without any other sends its spans where its sidecar does", async () => {
  const { endpoint, spans } = await openCollector();
  const sidecar = await start("sidecar", `[sidecar]\n${endpointLine(endpoint)}`);
  (await engineOf(sidecar)).save(makeBlocks("a", BLOCKS, PAGE));
  const isStored = (): boolean => spans().some(({ name }) => name === "tierkv.vault.store");
  await until(isStored, "the vault's spans of the saves");
});

test("a vault that does not trace sends no span, nor one whose sidecars do not", async () => {
  const { endpoint, spans } = await openCollector();
  const quiet = await start("vault", vaultToml(""));
  const asking = await start(
    "sidecar",
    sidecarToml(quiet.ready["address"], endpointLine(endpoint)),
  );
  const engine = await engineOf(asking);
  engine.save(makeBlocks("a", BLOCKS, PAGE));
  await until(() => spans().some(({ name }) => name === "tierkv.store"), "the saves");
  await asking.stop();
  await restore(await engineOf(await start("sidecar", sidecarToml(quiet.ready["address"], ""))));
  await quiet.stop();
  const tracing = await start("vault", vaultToml(endpointLine(endpoint)));
  const silent = await start("sidecar", sidecarToml(tracing.ready["address"], ""));
  const writer = await engineOf(silent);
  writer.save(makeBlocks("a", BLOCKS, PAGE));
  await silent.stop();
  await restore(await engineOf(await start("sidecar", sidecarToml(tracing.ready["address"], ""))));
  await tracing.stop();
  expect(spans().filter(({ service }) => service === "tierkv-vault")).toEqual([]);
  expect(spans().filter(({ traceId }) => traceId === CLIENT)).toEqual([]);
});
