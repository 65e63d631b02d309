// Owns the proof that the core writes a plain client's stream, that JavaScript writes the others', and that all get the same.
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import type * as PumpModule from "../../../src/gateway/front/pump.ts";
import { runInside } from "../../support/command-line.ts";
import { call, complete, gatewayBefore, testFolder, until } from "../../support/gateways.ts";

/** Answers that JavaScript has written piece by piece. */
const pumped = vi.hoisted(() => ({ count: 0 }));

vi.mock("../../../src/gateway/front/pump.ts", async (original) => {
  const { pump } = await original<typeof PumpModule>();
  return {
    pump: (...given: Parameters<typeof pump>) => {
      pumped.count += 1;
      return pump(...given);
    },
  };
});

afterEach(() => {
  pumped.count = 0;
});

const JSON_TYPE = { "content-type": "application/json" };
const BODY = JSON.stringify({ model: "m", prompt: "p", stream: true });

/** Returns what a client of HTTP/1.0 gets behind the head. */
async function byOldClient(url: string): Promise<string> {
  const { port } = new URL(url);
  const socket = connect(Number(port), "127.0.0.1");
  const head = `POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: ${BODY.length}`;
  socket.write(`${head}\r\n\r\n${BODY}`);
  let text = "";
  socket.setEncoding("utf8").on("data", (chunk: string) => (text += chunk));
  await once(socket, "close");
  return text.slice(text.indexOf("\r\n\r\n") + 4);
}

test("a plain client, one over TLS and one of HTTP/1.0 get the same events; the core writes the first one's", async () => {
  const dir = testFolder();
  await runInside(["certs", "init", "--dir", dir, "--host", "127.0.0.1"]);
  const ca = readFileSync(join(dir, "ca.pem"));
  const tls = {
    tlsCert: join(dir, "server-127.0.0.1.pem"),
    tlsKey: join(dir, "server-127.0.0.1-key.pem"),
  };
  const [plain, secured] = [await gatewayBefore([["m"]]), await gatewayBefore([["m"]], tls)];
  // Longer than what the core tells at once, so that no answer comes whole on a busy machine.
  const pad = "x".repeat(4096);
  const script = Array.from(
    { length: 300 },
    (_none, at) => `data: {"token":${at},"pad":"${pad}"}\n\n`,
  );
  for (const { engines } of [plain, secured]) engines[0]!.script = script;
  expect((await complete(plain.url, true)).text).toBe(script.join(""));
  expect(pumped.count).toBe(0);
  const overTls = await call(secured.url, "/v1/completions", {
    body: BODY,
    headers: JSON_TYPE,
    ca,
  });
  expect([overTls.text, pumped.count]).toEqual([script.join(""), 1]);
  expect([await byOldClient(plain.url), pumped.count]).toEqual([script.join(""), 2]);
});

test("an encoded stream is decoded in JavaScript, a plain answer of any length is not touched", async () => {
  const { engines, url } = await gatewayBefore([["m"]]);
  const [engine] = engines;
  engine!.isGzipped = true;
  expect((await complete(url, true)).text).toContain("data: [DONE]");
  expect(pumped.count).toBe(1);
  engine!.isGzipped = false;
  const long = "x".repeat(1 << 20);
  engine!.more = { long };
  const { text, headers } = await complete(url, false);
  expect((JSON.parse(text) as { long: string }).long === long).toBe(true);
  expect(pumped.count).toBe(1);
  expect(Number(headers["content-length"] ?? text.length)).toBe(text.length);
});

test("a connection takes further requests behind a stream that the core wrote", async () => {
  const { engines, url } = await gatewayBefore([["m"]]);
  const { port } = new URL(url);
  const socket = connect(Number(port), "127.0.0.1");
  let text = "";
  socket.setEncoding("utf8").on("data", (chunk: string) => (text += chunk));
  const head = `POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\ncontent-length: ${BODY.length}`;
  for (let n = 1; n <= 3; n += 1) {
    socket.write(`${head}\r\n\r\n${BODY}`);
    await until(() => text.split("0\r\n\r\n").length === n + 1);
  }
  socket.destroy();
  expect(text.split("data: [DONE]")).toHaveLength(4);
  expect(text.split("HTTP/1.1 200")).toHaveLength(4);
  expect([engines[0]!.asked.length, pumped.count]).toEqual([3, 0]);
});
