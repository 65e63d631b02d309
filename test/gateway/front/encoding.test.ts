// Owns the proof that an answer which its engine compresses unasked is metered, and stays readable in a stream kept alive.
import { gunzipSync } from "node:zlib";
import { expect, test, vi } from "vitest";
import { call, gatewayBefore, keyFile, until } from "../../support/gateways.ts";

vi.mock("../../../src/base/limits/gateway.ts", async (original) => ({
  ...(await original<object>()),
  GATEWAY_COMMENT_MS: 20,
}));

const HEADERS = { "content-type": "application/json", authorization: "Bearer k-ana" };

test.each([false, true])("a compressed answer costs its tokens (stream: %s)", async (stream) => {
  const keys = keyFile("ana k-ana tokens=10000");
  const { url, engines } = await gatewayBefore([["m"]], { keys });
  const usage = { usage: { prompt_tokens: 1000, completion_tokens: 500, total_tokens: 1500 } };
  Object.assign(engines[0]!, {
    isGzipped: true,
    more: usage,
    script: [`data: ${JSON.stringify(usage)}\n\n`],
  });
  const body = JSON.stringify({ model: "m", prompt: "p", ...(stream ? { stream } : {}) });
  const answer = await call(url, "/v1/completions", { body, headers: HEADERS });
  expect(answer.headers["content-encoding"]).toBeUndefined();
  expect(answer.text).toContain('"total_tokens":1500');
  const left = async (): Promise<number> => {
    const { headers } = await call(url, "/v1/completions", { body: "{}", headers: HEADERS });
    return Number(headers["x-ratelimit-remaining-tokens"]);
  };
  // Less what fills up again meanwhile.
  expect(await left()).toBeLessThan(10_000 - 1_400);
});

test("a compressed answer that nobody meters passes byte for byte", async () => {
  const { url, engines } = await gatewayBefore([["m"]]);
  engines[0]!.isGzipped = true;
  const response = await new Promise<{ bytes: Buffer; encoding: unknown }>((resolve) => {
    void import("node:http").then(({ request }) => {
      const asked = request(`${url}/v1/completions`, { method: "POST", headers: HEADERS });
      asked.on("response", (answer) => {
        const chunks: Buffer[] = [];
        answer.on("data", (chunk: Buffer) => chunks.push(chunk));
        answer.on("end", () => {
          resolve({ bytes: Buffer.concat(chunks), encoding: answer.headers["content-encoding"] });
        });
      });
      asked.end('{"model":"m"}');
    });
  });
  expect(response.encoding).toBe("gzip");
  expect(gunzipSync(response.bytes).toString()).toContain(engines[0]!.name);
});

test("a compressed stream is readable behind the comments before it, and so is its breaking off", async () => {
  const { url, engines } = await gatewayBefore([["m"]]);
  const [engine] = engines;
  engine!.isGzipped = true;
  const kept = async (): Promise<string> => {
    let open: () => void = () => {};
    engine!.gate = new Promise((resolve) => (open = resolve));
    let comments = 0;
    const body = JSON.stringify({ model: "m", prompt: "p", stream: true });
    const answer = call(url, "/v1/completions", {
      body,
      headers: HEADERS,
      onChunk: (chunk) => (comments += chunk.includes(": keep-alive") ? 1 : 0),
    });
    await until(() => comments > 0);
    open();
    return (await answer).text;
  };
  expect(await kept()).toMatch(/"token":4[^]*data: \[DONE\]\n\n$/);
  engine!.gate = Promise.resolve();
  engine!.fault = "break-mid-stream";
  let heard: () => void = () => {};
  engine!.hold = { after: 2, until: new Promise((resolve) => (heard = resolve)) };
  const { text } = await call(url, "/v1/completions", {
    body: '{"model":"m","stream":true}',
    headers: HEADERS,
    onChunk: (chunk) => {
      if (chunk.includes('"token":1')) heard();
    },
  });
  expect(text).toContain("broke off in the middle");
  expect(text).not.toContain("[DONE]");
});
