// Owns the proof of what clients meet beside plain requests: web pages, slashes, redirects, WebSockets, forms, stored answers.
import { appendFileSync, mkdirSync, rmdirSync, statSync } from "node:fs";
import type { OutgoingHttpHeaders } from "node:http";
import { connect } from "node:net";
import { join } from "node:path";
import { PassThrough } from "node:stream";
import OpenAI from "openai";
import { expect, test } from "vitest";
import type { Engine } from "../../../src/gateway/engines/engine.ts";
import {
  addressOf,
  call,
  complete,
  gatewayBefore,
  keyFile,
  SILENT,
  testFolder,
  until,
} from "../../support/gateways.ts";

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

test.each(["//10.0.0.9:8000/v1/x?y", "http://10.0.0.9:8000//10.0.0.9/x", "http://["])(
  "a redirect to %s names no host to a client",
  async (location) => {
    const { headersToClient } = await import("../../../src/gateway/front/headers.ts");
    const passed = headersToClient({ location, "content-location": location });
    for (const place of Object.values(passed)) expect(place).toMatch(/^\/(?!\/)/);
    expect(Object.keys(passed)).toHaveLength(location === "http://[" ? 0 : 2);
  },
);

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

test("a restarted gateway knows whose stored answers are, and where", async () => {
  const indexFile = join(testFolder(), "index");
  const keys = keyFile("ana k-ana acme", "bob k-bob other");
  const before = await gatewayBefore([["m"], ["m"]], { keys, indexFile });
  for (const [at, engine] of before.engines.entries()) engine.more = { id: `resp_${at}` };
  const create = { body: '{"model":"m","input":"x"}' };
  const as = (key: string): { headers: OutgoingHttpHeaders } => ({
    headers: { ...JSON_TYPE, authorization: `Bearer k-${key}` },
  });
  for (let n = 0; n < 2; n += 1) {
    await call(before.url, "/v1/responses", { ...create, ...as("ana") });
  }
  await before.close();
  // As a power failure may leave it.
  appendFileSync(`${indexFile}.responses`, '["resp_2","127.');
  const engines = before.engines.map(({ name }) => addressOf(name));
  const { url } = await gatewayBefore([], { keys, indexFile, engines });
  for (const at of [0, 1, 0, 1]) {
    const asked = (): number => before.engines[at]!.asked.length;
    const earlier = asked();
    expect((await call(url, `/v1/responses/resp_${at}`, as("ana"))).code).toBe(200);
    expect(asked()).toBe(earlier + 1);
    expect((await call(url, `/v1/responses/resp_${at}`, as("bob"))).code).toBe(404);
  }
  expect(statSync(`${indexFile}.responses`).mode & 0o777).toBe(0o600);
});

test("a file of stored answers that cannot be used is replaced, and said once", async () => {
  const { StoredResponses } = await import("../../../src/gateway/front/responses.ts");
  const path = join(testFolder(), "responses");
  mkdirSync(path);
  const said: string[] = [];
  const warn = (_what: object, words: string): void => void said.push(words);
  const stored = new StoredResponses(path, { ...SILENT, warn } as unknown as typeof SILENT);
  const engine = { name: "e" } as Engine;
  const keep = (id: number): void =>
    stored.onBegun("/v1/responses", null)?.(engine, Buffer.from(`{"id": "resp_${id}"`));
  keep(0);
  await stored.close();
  expect(said).toHaveLength(1);
  rmdirSync(path);
  keep(1);
  await stored.close();
  const again = new StoredResponses(path, SILENT);
  for (const id of [0, 1]) {
    expect(again.placeOf(`/v1/responses/resp_${id}`, null, null, [engine])).toBe(engine);
  }
  expect(said).toHaveLength(1);
});

test("a request that cannot be read to its end is answered in its API's form", async () => {
  const { url } = await gatewayBefore([["m"]]);
  const { hostname, port } = new URL(url);
  const answerTo = (text: string): Promise<string> =>
    new Promise((resolve) => {
      let answer = "";
      const socket = connect(Number(port), hostname, () => socket.write(text));
      socket.setEncoding("utf8").on("data", (chunk: string) => (answer += chunk));
      socket.on("close", () => resolve(answer));
    });
  const large = await answerTo(`GET /health HTTP/1.1\r\nhost: g\r\nx: ${"y".repeat(70_000)}\r\n`);
  expect(large).toMatch(/^HTTP\/1.1 431 [^]*"code":431/);
  const odd = await answerTo(
    "POST /v1/messages HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n",
  );
  expect(odd).toMatch(/^HTTP\/1.1 400 [^]*"type":"invalid_request_error"/);
  const { refuseUnread } = await import("../../../src/gateway/front/refusal.ts");
  const slow = new PassThrough().setEncoding("utf8");
  refuseUnread("ERR_HTTP_REQUEST_TIMEOUT", slow, "/v1/completions");
  const late = String(await slow.toArray());
  expect(late).toMatch(/^HTTP\/1.1 408 [^]*not complete after 60000 ms/);
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
