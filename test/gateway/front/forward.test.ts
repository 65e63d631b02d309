// Owns the proof that answers pass untouched, and that a request whose engine fails gets a whole answer of another or an error.
import { expect, test } from "vitest";
import { GATEWAY_BODY_KEPT_BYTES } from "../../../src/base/limits/gateway.ts";
import { call, complete, gatewayBefore, until } from "../../support/gateways.ts";
import type { Fault } from "../../support/sim-engine.ts";

const JSON_TYPE = { "content-type": "application/json" };

test("a request passes as it is, and so does the answer, with the engine in a header", async () => {
  const { engines, url } = await gatewayBefore([["m"]]);
  const body = '{ "model":"m",  "kv_transfer_params":{"a":[1]}, "text":"\\u00e9" }';
  const headers = {
    ...JSON_TYPE,
    "x-request-id": "r-1",
    traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    authorization: "Bearer k",
    connection: "keep-alive, x-own",
    "x-own": "1",
  };
  const answer = await call(url, "/v1/chat/completions?a=b", { body, headers });
  expect(answer.code).toBe(200);
  expect(JSON.parse(answer.text)).toEqual({ engine: engines[0]?.name, echo: body });
  expect(answer.headers["x-gateway-destination-endpoint-served"]).toBe(engines[0]?.name);
  expect(answer.headers["x-tierkv-preset"]).toBe("round-robin");
  const [asked] = engines[0]?.asked ?? [];
  expect(asked).toMatchObject({ method: "POST", path: "/v1/chat/completions?a=b", body });
  const { "x-request-id": id, traceparent, authorization } = asked?.headers ?? {};
  expect([id, traceparent, authorization]).toEqual(["r-1", headers.traceparent, "Bearer k"]);
  expect(asked?.headers["x-own"]).toBeUndefined();
});

test("a stream passes event by event", async () => {
  const { engines, url } = await gatewayBefore([["m"]]);
  const answer = await complete(url, true);
  const tokens = [0, 1, 2, 3, 4].map((n) => `data: {"engine":"${engines[0]?.name}","token":${n}}`);
  expect(answer.text).toBe(`${[...tokens, "data: [DONE]"].join("\n\n")}\n\n`);
  expect(answer.headers["content-type"]).toBe("text/event-stream; charset=utf-8");
});

test.each<Fault>(["reset", "unserved", "break-after-head"])(
  "an engine that fails with %s before the first byte: another one answers",
  async (fault) => {
    const { engines, url } = await gatewayBefore([["m"], ["m"]]);
    const [bad, good] = engines;
    bad!.fault = fault;
    for (let n = 0; n < 4; n += 1) {
      const answer = await complete(url, true);
      expect(answer.code).toBe(200);
      expect(answer.text).toContain(good!.name);
      expect(answer.text).not.toContain(bad!.name);
      expect(answer.text.endsWith("data: [DONE]\n\n")).toBe(true);
    }
    expect(bad!.asked.length).toBeGreaterThan(0);
  },
);

test.each<Fault>(["none", "reset", "unserved", "break-after-head"])(
  "a long body reaches an engine whole and with its length, after another one failed with %s, too",
  async (fault) => {
    const { engines, url } = await gatewayBefore([["m"], ["m"]]);
    engines[0]!.fault = fault;
    const text = "x".repeat(2 * GATEWAY_BODY_KEPT_BYTES);
    const body = JSON.stringify({ model: "m", prompt: text, stream: true });
    for (let n = 0; n < 2; n += 1) {
      const { code } = await call(url, "/v1/completions", { body, headers: JSON_TYPE });
      expect(code).toBe(200);
    }
    const all = engines.flatMap(({ asked }) => asked);
    expect(all.length).toBeGreaterThan(fault === "none" ? 1 : 2);
    for (const one of all) {
      expect(one.body === body).toBe(true);
      expect(one.headers["content-length"]).toBe(String(body.length));
    }
  },
);

test("an engine that breaks off between two events: an error event, and no end", async () => {
  const { engines, url } = await gatewayBefore([["m"], ["m"]]);
  for (const engine of engines) engine.fault = "break-mid-stream";
  const { text, isCut } = await complete(url, true);
  const events = text.split("\n\n").filter((event) => event !== "");
  expect(isCut).toBe(false);
  expect(JSON.parse(events.at(-1)!.slice("data: ".length))).toMatchObject({ error: { code: 502 } });
  expect(events.slice(0, -1).map((event) => event.slice(-2))).toEqual(["0}", "1}", "2}"]);
  expect(text).not.toContain("[DONE]");
  expect((await call(url, "/metrics")).text).toMatch(
    /^tierkv_gateway_answers_broken_total\{engine="[^"]+"\} 1$/m,
  );
});

test("an engine that breaks off within an event: the connection breaks, too", async () => {
  const { engines, url } = await gatewayBefore([["m"]]);
  engines[0]!.fault = "break-mid-event";
  const { text, isCut } = await complete(url, true);
  expect(isCut).toBe(true);
  expect(text).not.toContain("error");
  expect(text).not.toContain("[DONE]");
});

test("an engine that is gone: 503, and the models of the others still answer", async () => {
  const { engines, url } = await gatewayBefore([["a"], ["b"]]);
  await engines[0]!.kill();
  await until(async () => (await complete(url, false, "a")).code === 503);
  const refused = await complete(url, false, "a");
  expect(JSON.parse(refused.text)).toMatchObject({ error: { code: 503 } });
  expect(refused.headers["retry-after"]).toBe("1");
  expect((await complete(url, false, "b")).code).toBe(200);
  await engines[0]!.start();
  await until(async () => (await complete(url, false, "a")).code === 200);
});

test("a client that leaves: its request at the engine is aborted, before and within the answer", async () => {
  const { engines, url } = await gatewayBefore([["m"]]);
  const [engine] = engines;
  const body = JSON.stringify({ model: "m", stream: true });
  engine!.fault = "silent";
  const waiting = call(url, "/v1/completions", {
    body,
    headers: JSON_TYPE,
    onRequest: (asked) => void until(() => engine!.asked.length === 1).then(() => asked.destroy()),
  });
  await expect(waiting).rejects.toThrow();
  await until(() => engine!.aborted === 1);
  engine!.fault = "none";
  engine!.tokens = 1e9;
  let asked: { destroy(): void } | null = null;
  const cut = await call(url, "/v1/completions", {
    body,
    headers: JSON_TYPE,
    onRequest: (one) => (asked = one),
    onChunk: () => asked?.destroy(),
  });
  expect(cut.isCut).toBe(true);
  await until(() => engine!.aborted === 2);
  await until(async () => {
    const { text } = await call(url, "/metrics");
    return text.includes("tierkv_gateway_clients_gone_total 2");
  });
});
