// Owns the proof that an engine whose core is too busy to say whether it sleeps keeps its requests.
import { expect, test, vi } from "vitest";
import { GATEWAY_HEALTH_FAILURES } from "../../../src/base/limits/gateway.ts";
import type * as Limits from "../../../src/base/limits/gateway.ts";
import { complete, gatewayBefore, until } from "../../support/gateways.ts";

vi.mock("../../../src/base/limits/gateway.ts", async (original) => ({
  ...(await original<typeof Limits>()),
  GATEWAY_HEALTH_MS: 20,
  GATEWAY_HEALTH_TIMEOUT_MS: 500,
  GATEWAY_PAUSE_TIMEOUT_MS: 100,
}));

/** More than the failures after which an engine is down. */
const CHECKS = 8;

const AWAKE = { "/is_paused": { is_paused: false }, "/is_sleeping": { is_sleeping: false } };

test.each(["/is_paused", "/is_sleeping"])("while nobody answers %s", async (path) => {
  const { engines, url } = await gatewayBefore([["m"]]);
  const [engine] = engines;
  engine!.states = AWAKE;
  // The engine is asked for its paths anew after an end.
  await engine!.kill();
  await until(async () => (await complete(url, false)).code === 503);
  await engine!.start();
  await until(async () => (await complete(url, false)).code === 200);
  engine!.silentAt = path;
  await until(() => Promise.resolve(engine!.unanswered >= CHECKS));
  expect((await complete(url, false)).code).toBe(200);
});

test("an engine that sleeps gets no request while its core is silent, as in waking up", async () => {
  const { engines, url } = await gatewayBefore([["m"]]);
  const [engine] = engines;
  engine!.states = { "/is_sleeping": { is_sleeping: true } };
  await engine!.kill();
  await until(async () => (await complete(url, false)).code === 503);
  await engine!.start();
  engine!.silentAt = "/is_sleeping";
  await until(() => Promise.resolve(engine!.unanswered >= GATEWAY_HEALTH_FAILURES + 1));
  expect((await complete(url, false)).code).toBe(503);
  engine!.states = AWAKE;
  engine!.silentAt = null;
  await until(async () => (await complete(url, false)).code === 200);
});
