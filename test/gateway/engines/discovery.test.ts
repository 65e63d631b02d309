// Owns the proof that engines behind a name come and go with its addresses, and that a name without an answer changes nothing.
import { expect, onTestFinished, test, vi } from "vitest";
import { GATEWAY_DISCOVER_MS } from "../../../src/base/limits/gateway.ts";
import { addressesOf, Discovery } from "../../../src/gateway/engines/discovery.ts";
import type { Neighbour } from "../../../src/gateway/engines/discovery.ts";
import { complete, gatewayBefore, SILENT } from "../../support/gateways.ts";
import { SimEngine } from "../../support/sim-engine.ts";
import { SOON_MS } from "../../support/vaults.ts";

const at = (address: string, events: string | null = null): Neighbour => {
  return { address, events, replays: null };
};

test("engines that come, publish elsewhere, go, and cannot be told for a while", async () => {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  let answer: Neighbour[] | null = [at("a:1"), at("b:1")];
  const heard: string[] = [];
  const discovery = new Discovery({
    of: "vllm",
    logger: SILENT,
    onFound: ({ address }) => heard.push(`+${address}`) > 0,
    onMoved: ({ address, events }) => heard.push(`${address} at ${events}`),
    onGone: ({ address }) => heard.push(`-${address}`),
    look: () => (answer === null ? Promise.reject(new Error("SERVFAIL")) : Promise.resolve(answer)),
  });
  const next = async (now: Neighbour[] | null): Promise<string[]> => {
    answer = now;
    heard.length = 0;
    await vi.advanceTimersByTimeAsync(GATEWAY_DISCOVER_MS);
    return [...heard];
  };
  await discovery.start();
  expect(heard).toEqual(["+a:1", "+b:1"]);
  expect(await next([at("a:1"), at("b:1")])).toEqual([]);
  expect(await next([at("a:1"), at("b:1", "b:2")])).toEqual(["b:1 at b:2"]);
  expect(await next(null)).toEqual([]);
  expect(await next([at("b:1"), at("c:1")])).toEqual(["-a:1", "b:1 at null", "+c:1"]);
  const many = Array.from({ length: 100 }, (_none, n) => at(`d:${n}`));
  expect((await next(many)).filter((one) => one.startsWith("+"))).toHaveLength(100);
  await discovery.close();
  expect(await next([at("e:1")])).toEqual([]);
});

test("an address that there was no room for is taken once there is", async () => {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  const told: string[] = [];
  let hasRoom = false;
  const discovery = new Discovery({
    of: "vllm",
    logger: SILENT,
    onFound: ({ address }) => told.push(address) > 0 && hasRoom,
    onMoved: () => told.push("moved"),
    onGone: ({ address }) => told.push(`-${address}`),
    look: () => Promise.resolve([at("a:1", hasRoom ? "a:2" : null)]),
  });
  await discovery.start();
  await vi.advanceTimersByTimeAsync(GATEWAY_DISCOVER_MS);
  hasRoom = true;
  await vi.advanceTimersByTimeAsync(2 * GATEWAY_DISCOVER_MS);
  expect(told).toEqual(["a:1", "a:1", "a:1"]);
  await discovery.close();
});

test("a gateway whose source of engines is silent serves, and takes the engines once they are listed", async () => {
  const engine = new SimEngine(["m"]);
  await engine.start();
  onTestFinished(() => engine.kill());
  let answer!: (engines: Neighbour[]) => void;
  const list = new Promise<Neighbour[]>((resolve) => {
    answer = resolve;
  });
  const { url } = await gatewayBefore(
    [],
    {},
    [],
    [],
    () => [],
    () => list,
  );
  const health = async (): Promise<number> => (await fetch(`${url}/health`)).status;
  expect(await health()).toBe(503);
  answer([at(engine.name)]);
  await vi.waitFor(async () => expect(await health()).toBe(200), SOON_MS);
});

test("a host with addresses of both families is one engine", async () => {
  const found = [
    { address: "10.0.0.9", family: 4 },
    { address: "fd00::9", family: 6 },
  ];
  const resolve = (): Promise<typeof found> => Promise.resolve(found);
  expect([["10.0.0.9"], ["[fd00::9]"]]).toContainEqual(await addressesOf("vllm", resolve));
  found.shift();
  expect(await addressesOf("vllm", resolve)).toEqual(["[fd00::9]"]);
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
