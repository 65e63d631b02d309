// Owns the proof that engines behind a name come and go with its addresses, and that a name without an answer changes nothing.
import { expect, onTestFinished, test, vi } from "vitest";
import { Discovery } from "../../../src/gateway/engines/discovery.ts";
import { GATEWAY_DISCOVER_MS, GATEWAY_ENGINES_MAX } from "../../../src/limits/gateway.ts";
import { complete, gatewayBefore, SILENT } from "../../support/gateways.ts";
import { SimEngine } from "../../support/sim-engine.ts";

test("addresses that come, go, and cannot be told for a while", async () => {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  let answer: string[] | null = ["10.0.0.1", "10.0.0.2"];
  const heard: string[] = [];
  const discovery = new Discovery({
    of: "vllm",
    logger: SILENT,
    onFound: (host) => heard.push(`+${host}`) > 0,
    onGone: (host) => heard.push(`-${host}`),
    ask: () => (answer === null ? Promise.reject(new Error("SERVFAIL")) : Promise.resolve(answer)),
  });
  const next = async (now: string[] | null): Promise<string[]> => {
    answer = now;
    heard.length = 0;
    await vi.advanceTimersByTimeAsync(GATEWAY_DISCOVER_MS);
    return [...heard];
  };
  await discovery.start();
  expect(heard).toEqual(["+10.0.0.1", "+10.0.0.2"]);
  expect(await next(["10.0.0.1", "10.0.0.2"])).toEqual([]);
  expect(await next(null)).toEqual([]);
  expect(await next(["10.0.0.2", "10.0.0.3"])).toEqual(["-10.0.0.1", "+10.0.0.3"]);
  const many = Array.from({ length: 100 }, (_none, at) => `10.1.0.${at}`);
  expect((await next(many)).filter((one) => one.startsWith("+"))).toHaveLength(GATEWAY_ENGINES_MAX);
  await discovery.close();
  expect(await next(["10.0.0.9"])).toEqual([]);
});

test("an address that there was no room for is taken once there is", async () => {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  const told: string[] = [];
  let hasRoom = false;
  const discovery = new Discovery({
    of: "vllm",
    logger: SILENT,
    onFound: (host) => told.push(host) > 0 && hasRoom,
    onGone: (host) => told.push(`-${host}`),
    ask: () => Promise.resolve(["10.0.0.1"]),
  });
  await discovery.start();
  await vi.advanceTimersByTimeAsync(GATEWAY_DISCOVER_MS);
  hasRoom = true;
  await vi.advanceTimersByTimeAsync(2 * GATEWAY_DISCOVER_MS);
  expect(told).toEqual(["10.0.0.1", "10.0.0.1", "10.0.0.1"]);
  await discovery.close();
});

test("an engine that a name leads to gets requests", async () => {
  const engine = await new SimEngine().start();
  onTestFinished(() => engine.kill());
  const port = Number(engine.name.split(":")[1]);
  const discover = { host: "localhost", port, text: `localhost:${port}` };
  const { url, known } = await gatewayBefore([], { discover });
  expect(known).toContain(engine.name);
  await vi.waitFor(async () => expect((await complete(url, false)).code).toBe(200), 30_000);
});
