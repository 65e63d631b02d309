// Owns the proof of what clients meet beside plain requests: web pages, slashes, redirects, WebSockets, forms, stored answers.
import OpenAI from "openai";
import { expect, test } from "vitest";
import { call, complete, gatewayBefore, keyFile, until } from "../../support/gateways.ts";

const JSON_TYPE = { "content-type": "application/json" };
const ORIGIN = "https://chat.example";

test("a page's preflight needs no key, and it may read answers and refusals", async () => {
  const keys = keyFile("a secret");
  const { url, engines } = await gatewayBefore([["m"]], { keys, allowedOrigins: [ORIGIN] });
  const preflight = {
    origin: ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
  };
  const asked = await call(url, "/v1/chat/completions", { method: "OPTIONS", headers: preflight });
  expect(asked.code).toBe(204);
  expect(asked.headers).toMatchObject({
    "access-control-allow-origin": ORIGIN,
    "access-control-allow-headers": "authorization,content-type",
  });
  expect(asked.headers["access-control-allow-methods"]).toContain("POST");
  for (const authorization of ["Bearer secret", "Bearer wrong"]) {
    for (const path of ["/v1/models", "/v1/completions"]) {
      const headers = { origin: ORIGIN, authorization, ...JSON_TYPE };
      const answer = await call(url, path, {
        headers,
        ...(path === "/v1/models" ? {} : { body: '{"model":"m"}' }),
      });
      expect(answer.headers["access-control-allow-origin"], path).toBe(ORIGIN);
    }
  }
  const stranger = { ...preflight, origin: "https://other.example" };
  const refused = await call(url, "/v1/models", { method: "OPTIONS", headers: stranger });
  expect(refused.headers["access-control-allow-origin"]).toBeUndefined();
  expect(engines[0]!.asked.every(({ method }) => method === "POST")).toBe(true);
});

test("a slash at a path's end changes nothing, and no engine's address reaches a client", async () => {
  const { url, engines } = await gatewayBefore([["m"]], { showEngine: false });
  expect((await call(url, "/v1/models/")).code).toBe(200);
  const body = JSON.stringify({ model: "m" });
  const answer = await call(url, "/v1/chat/completions/?a=b", { body, headers: JSON_TYPE });
  expect(answer.code).toBe(200);
  expect(engines[0]!.asked.at(-1)!.path).toBe("/v1/chat/completions?a=b");
  expect(JSON.stringify(answer.headers)).not.toContain(engines[0]!.name);
  engines[0]!.fault = "redirect";
  const moved = await call(url, "/v1/completions", { body, headers: JSON_TYPE });
  expect([moved.code, moved.headers.location]).toEqual([307, "/v1/completionsthere?x=1"]);
});

test("HEAD and /ping answer like /health", async () => {
  const { url, engines } = await gatewayBefore([["m"]]);
  const codes = async (): Promise<number[]> => [
    (await call(url, "/health", { method: "HEAD" })).code,
    (await call(url, "/ping")).code,
    (await call(url, "/ping", { method: "POST" })).code,
  ];
  expect(await codes()).toEqual([200, 200, 200]);
  await engines[0]!.kill();
  await until(async () => (await codes()).every((code) => code === 503));
});

test("a WebSocket is refused with a reason", async () => {
  const { url } = await gatewayBefore([["m"]]);
  const headers = { connection: "upgrade", upgrade: "websocket" };
  const answer = await call(url, "/v1/realtime", { headers });
  expect([answer.code, answer.text]).toEqual([501, expect.stringContaining("WebSockets")]);
});

test("a form's model decides, wherever the field stands, and a file's own text does not", async () => {
  const { url, engines } = await gatewayBefore([["a"], ["whisper"]]);
  const part = (head: string, text: string): string =>
    `--b\r\ncontent-disposition: form-data; ${head}\r\n\r\n${text}\r\n`;
  const file = part('name="file"; filename="f"', 'name="model"\r\n\r\na');
  for (const body of [
    `${part('name="model"', "whisper")}${file}--b--\r\n`,
    `${file}${part('name="model"', "whisper")}--b--\r\n`,
  ]) {
    const headers = { "content-type": "multipart/form-data; boundary=b" };
    expect((await call(url, "/v1/audio/transcriptions", { body, headers })).code).toBe(200);
  }
  expect([engines[0]!.asked.length, engines[1]!.asked.length]).toEqual([0, 2]);
});

test("a stored answer stays with its engine and its tenant", async () => {
  const keys = keyFile("ana k-ana acme", "bob k-bob other");
  const { url, engines } = await gatewayBefore([["m"], ["m"]], { keys });
  for (const [at, engine] of engines.entries()) {
    engine.more = { id: `resp_${at}` };
    engine.rendered = () => [1];
  }
  const as = (key: string): OpenAI =>
    new OpenAI({ baseURL: `${url}/v1`, apiKey: `k-${key}`, maxRetries: 0 });
  const ids: string[] = [];
  for (let n = 0; n < 2; n += 1) {
    ids.push((await as("ana").responses.create({ model: "m", input: "x" })).id);
  }
  expect(new Set(ids).size).toBe(2);
  for (const id of [...ids, ...ids]) {
    const at = Number(id.slice(-1));
    const before = engines[at]!.asked.length;
    await as("ana").responses.retrieve(id);
    await as("ana").responses.create({ model: "m", input: "y", previous_response_id: id });
    expect(engines[at]!.asked.length - before).toBe(2);
    await expect(as("bob").responses.retrieve(id)).rejects.toMatchObject({ status: 404 });
  }
  const rendered = await call(url, "/v1/responses/render", {
    body: JSON.stringify({ model: "m", input: "x" }),
    headers: { ...JSON_TYPE, authorization: "Bearer k-ana" },
  });
  expect(rendered.code).not.toBe(404);
  await expect(as("ana").responses.retrieve("resp_unknown")).rejects.toMatchObject({ status: 404 });
});

test("a tenant's headers reach an engine only where they cannot change what it does", async () => {
  const keys = keyFile("ana k-ana acme", "ops k-ops");
  const { url, engines } = await gatewayBefore([["m"]], { keys });
  const more = {
    "x-vllm-priority": "-100",
    "x-data-parallel-rank": "1",
    "x-cache-salt": "other",
    "x-session-id": "s",
    "x-request-id": "r",
    traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
  };
  const headersFor = async (key: string): Promise<Record<string, unknown>> => {
    const headers = { ...JSON_TYPE, ...more, authorization: `Bearer ${key}` };
    await call(url, "/v1/completions", { body: '{"model":"m"}', headers });
    return engines[0]!.asked.at(-1)!.headers;
  };
  const tenant = await headersFor("k-ana");
  expect(Object.keys(tenant).filter((name) => name in more)).toEqual([
    "x-request-id",
    "traceparent",
  ]);
  expect(await headersFor("k-ops")).toMatchObject(more);
});

test("a metered answer is asked for uncompressed", async () => {
  const keys = keyFile("ana k-ana tokens=1000", "ops k-ops");
  const { url, engines } = await gatewayBefore([["m"]], { keys });
  const encodingFor = async (key: string): Promise<unknown> => {
    const headers = { ...JSON_TYPE, "accept-encoding": "gzip", authorization: `Bearer ${key}` };
    await call(url, "/v1/completions", { body: '{"model":"m"}', headers });
    return engines[0]!.asked.at(-1)!.headers["accept-encoding"];
  };
  expect([await encodingFor("k-ana"), await encodingFor("k-ops")]).toEqual(["identity", "gzip"]);
});

test("a body's room comes back with the answer's first byte", async () => {
  const { BodyBudget } = await import("../../../src/gateway/front/body.ts");
  const taken: number[] = [];
  const { prototype } = BodyBudget;
  const { give } = prototype;
  prototype.give = function giveCounted(this: InstanceType<typeof BodyBudget>, bytes: number) {
    taken.push(bytes);
    give.call(this, bytes);
  };
  try {
    const { url, engines } = await gatewayBefore([["m"]]);
    let open: () => void = () => {};
    engines[0]!.hold = { after: 2, until: new Promise((resolve) => (open = resolve)) };
    const answer = complete(url, true);
    await until(() => taken.length === 1);
    expect(engines[0]!.aborted).toBe(0);
    open();
    expect((await answer).text).toContain("[DONE]");
    expect(taken).toHaveLength(1);
  } finally {
    prototype.give = give;
  }
});
