// Owns the proof of what the gateway answers itself: models, health, refusals, and its bounds.
import { expect, test } from "vitest";
import {
  GATEWAY_BODY_BYTES_MAX,
  GATEWAY_BODY_COPIES,
  GATEWAY_BODY_PARTS_MAX,
} from "../../../src/base/limits/gateway.ts";
import { holderOf, isPassed } from "../../../src/gateway/front/reading.ts";
import { call, complete, gatewayBefore, until } from "../../support/gateways.ts";
import type { Answer } from "../../support/gateways.ts";

test("models of all engines, each once; a request goes to an engine that has its model", async () => {
  const { engines, url } = await gatewayBefore([["a", "b"], ["b"]]);
  const models = JSON.parse((await call(url, "/v1/models")).text) as { data: { id: string }[] };
  expect(models.data.map(({ id }) => id)).toEqual(["a", "b"]);
  for (let n = 0; n < 4; n += 1) {
    expect((await complete(url, false, "a")).text).toContain(engines[0]!.name);
  }
  const both = new Set<string>();
  for (let n = 0; n < 4; n += 1) {
    const { text } = await complete(url, false, "b");
    both.add((JSON.parse(text) as { engine: string }).engine);
  }
  expect(both.size).toBe(2);
  const unknown = await complete(url, false, "c");
  expect(unknown.code).toBe(404);
  expect(JSON.parse(unknown.text)).toMatchObject({ error: { type: "NotFoundError", code: 404 } });
});

test("paths that steer one engine are not passed on", async () => {
  const { engines, url } = await gatewayBefore([["m"]]);
  for (const path of ["/reset_prefix_cache", "/sleep", "/v1", "/shutdown", "/tokenizer_info"]) {
    expect((await call(url, path, { method: "POST", body: "{}" })).code, path).toBe(404);
  }
  const passed = ["/detokenize", "/v1/embeddings", "/score", "/generative_scoring"];
  passed.push("/inference/v1/generate");
  for (const path of passed) {
    expect((await call(url, path, { body: '{"model":"m"}' })).code, path).toBe(200);
  }
  // As for engines, an empty name is none.
  expect((await call(url, "/score", { body: '{"model":""}' })).code).toBe(200);
  expect(engines[0]!.asked.map(({ path }) => path)).toEqual([...passed, "/score"]);
});

test("a path with dots is not passed on, because another proxy would make another path of it", () => {
  const anybody = holderOf(null, {})!;
  for (const path of ["/v1/../sleep", "/v1/%2e%2E/sleep", "/v1/a/..%2fsleep", "/v1/..", "/v1/./a"])
    expect(isPassed(path, anybody), path).toBe(false);
  for (const path of ["/v1/models/a..b", "/v1/models/.a", "/v1/models/a.."])
    expect(isPassed(path, anybody), path).toBe(true);
});

test("a body that is nested too deep to be written again is refused, and the gateway goes on", async () => {
  const { url } = await gatewayBefore([["m"]], { preset: "earliest-token" });
  const deep = `${"[".repeat(200_000)}${"]".repeat(200_000)}`;
  const body = `{"model":"m","messages":[{"role":"user","content":"p"}],"tools":${deep}}`;
  const headers = { "content-type": "application/json" };
  expect((await call(url, "/v1/chat/completions", { body, headers })).code).toBe(400);
  expect((await call(url, "/health")).code).toBe(200);
});

test("a body of very many small parts is refused unparsed, because parsing it would hold up all others; long ones pass", async () => {
  const { url, engines } = await gatewayBefore([["m"]]);
  const headers = { "content-type": "application/json" };
  const ask = (more: string): Promise<Answer> =>
    call(url, "/v1/completions", { body: `{"model":"m","prompt":"p",${more}}`, headers });
  const many = (part: string): string => `"x":[${Array(GATEWAY_BODY_PARTS_MAX).fill(part).join()}]`;
  for (const part of ["[]", '{"a":1}', '"\\\\"']) {
    const refused = await ask(many(part));
    expect([refused.code, refused.text], part).toEqual([
      400,
      expect.stringContaining(`at most ${GATEWAY_BODY_PARTS_MAX} texts`),
    ]);
  }
  expect(engines[0]!.asked).toHaveLength(0);
  const brackets = JSON.stringify('[{"\\'.repeat(GATEWAY_BODY_PARTS_MAX));
  for (const more of [many("7"), `"x":${brackets}`]) expect((await ask(more)).code).toBe(200);
});

test("health says whether any engine answers", async () => {
  const { engines, url } = await gatewayBefore([["m"]]);
  expect((await call(url, "/health")).code).toBe(200);
  engines[0]!.isHealthy = false;
  await until(async () => (await call(url, "/health")).code === 503);
  engines[0]!.isHealthy = true;
  await until(async () => (await call(url, "/health")).code === 200);
});

test("a body above its limit is refused before it is read", async () => {
  const { engines, url } = await gatewayBefore([["m"]]);
  const headers = { "content-length": String(GATEWAY_BODY_BYTES_MAX + 1) };
  const refused = await new Promise<number>((resolve) => {
    void call(url, "/v1/completions", {
      method: "POST",
      headers,
      onRequest: (asked) => {
        asked.on("response", ({ statusCode }) => resolve(statusCode ?? 0)).flushHeaders();
        asked.end = () => asked;
      },
    }).catch(() => {});
  });
  expect(refused).toBe(413);
  expect(engines[0]!.asked).toHaveLength(0);
});

test("a request that finds no room in time is told to come again", async () => {
  const { engines, url } = await gatewayBefore([["m"]], { inFlightMax: 1, waitMs: 50 });
  const [engine] = engines;
  let open: () => void = () => {};
  engine!.gate = new Promise((resolve) => (open = resolve));
  const first = complete(url, false);
  await until(() => engine!.asked.length === 1);
  const late = await complete(url, false);
  expect(late.code).toBe(429);
  expect(late.headers["retry-after"]).toBe("1");
  open();
  expect((await first).code).toBe(200);
  expect(engine!.asked).toHaveLength(1);
});

test("a request that finds no room waits until there is some", async () => {
  const { engines, url } = await gatewayBefore([["m"]], { inFlightMax: 1, waitMs: 60_000 });
  const [engine] = engines;
  let open: () => void = () => {};
  engine!.gate = new Promise((resolve) => (open = resolve));
  const both = [complete(url, false), complete(url, false)];
  await until(async () => (await call(url, "/metrics")).text.includes("tierkv_gateway_waiting 1"));
  await until(() => engine!.asked.length === 1);
  open();
  for (const answer of await Promise.all(both)) expect(answer.code).toBe(200);
  expect(engine!.asked).toHaveLength(2);
});

test("bodies together have a bound, and give their room back", async () => {
  const { BodyBudget } = await import("../../../src/gateway/front/body.ts");
  const budget = new BodyBudget(10 * GATEWAY_BODY_COPIES);
  expect([budget.take(6), budget.take(5), budget.take(4)]).toEqual([true, false, true]);
  budget.give(6);
  expect(budget.bytes).toBe(4 * GATEWAY_BODY_COPIES);
});
