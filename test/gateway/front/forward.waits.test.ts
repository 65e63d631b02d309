// Owns the proof that a request waits at a healthy engine without a limit, is kept alive, and leaves an engine that goes down.
import { expect, test, vi } from "vitest";
import { AnswerMeter } from "../../../src/base/native.ts";
import { call, complete, gatewayBefore, until } from "../../support/gateways.ts";
import type { Answer } from "../../support/gateways.ts";

vi.mock("../../../src/base/limits/gateway.ts", async (original) => ({
  ...(await original<object>()),
  GATEWAY_COMMENT_MS: 50,
}));

/** Asks for a stream, and counts the comments in it. */
function streamWatched(url: string, comments: { count: number }): Promise<Answer> {
  const body = JSON.stringify({ model: "m", prompt: "p", stream: true });
  return call(url, "/v1/completions", {
    body,
    headers: { "content-type": "application/json" },
    onChunk: (chunk) => (comments.count += chunk.split(": keep-alive").length - 1),
  });
}

test("a stream that has not begun gets comments, and may still go to another engine", async () => {
  const { engines, url } = await gatewayBefore([["m"], ["m"]]);
  const opens = engines.map((engine) => {
    let open: () => void = () => {};
    engine.gate = new Promise((resolve) => (open = resolve));
    return open;
  });
  const comments = { count: 0 };
  const answer = streamWatched(url, comments);
  await until(() => comments.count >= 2);
  const first = engines.findIndex(({ asked }) => asked.length === 1);
  engines[first]!.isHealthy = false;
  opens[1 - first]!();
  const { text, code } = await answer;
  expect(code).toBe(200);
  expect(text).toContain(engines[1 - first]!.name);
  expect(text.endsWith("data: [DONE]\n\n")).toBe(true);
});

test("a stream that was kept alive ends with an error event where no engine answers", async () => {
  const { engines, url } = await gatewayBefore([["m"]]);
  engines[0]!.gate = new Promise(() => {});
  const comments = { count: 0 };
  const answer = streamWatched(url, comments);
  await until(() => comments.count >= 1);
  await engines[0]!.kill();
  const { text } = await answer;
  const { error } = JSON.parse(text.split("data: ").at(-1)!) as { error: { code: number } };
  expect([502, 503]).toContain(error.code);
});

test("an engine that is declared down gives up its requests without a first byte at once", async () => {
  const { engines, url } = await gatewayBefore([["m"], ["m"]]);
  const [first] = engines;
  first!.fault = "silent";
  const answers = [complete(url, true), complete(url, true)];
  await until(() => engines.every(({ asked }) => asked.length >= 1));
  // Its connections stay open, and its health fails: as a machine that hangs.
  first!.isHealthy = false;
  for (const answer of await Promise.all(answers)) {
    expect(answer.text).toContain("[DONE]");
    expect(answer.text).toContain(engines[1]!.name);
  }
});

test("a refusal of all engines passes as the last one gave it", async () => {
  const { engines, url } = await gatewayBefore([["m"], ["m"]]);
  for (const engine of engines) engine.fault = "busy";
  const answer = await complete(url, false);
  expect([answer.code, answer.text, answer.headers["retry-after"]]).toEqual([503, "busy", "7"]);
});

test("comments of an engine are no beginning and no tokens", async () => {
  const { engines, url } = await gatewayBefore([["m"]]);
  const data = (n: number): string => `data: {"token":${n}}\n\n`;
  engines[0]!.script = [": ping\n\n", ": ping\r\n\r\n", data(0), ": ping\n\n", data(1)];
  const { text } = await complete(url, true);
  expect(text).toBe(`${data(0)}: ping\n\n${data(1)}`);
  const meter = new AnswerMeter();
  for (const byte of Buffer.from(engines[0]!.script.join(""))) meter.pass(Buffer.from([byte]));
  expect(meter.events).toBe(2);
});

test.each([
  ["/is_paused", { is_paused: true }],
  ["/is_sleeping", { is_sleeping: true }],
])("an engine that says so at %s gets no requests until it does not", async (path, state) => {
  const { engines, url } = await gatewayBefore([["m"], ["m"]]);
  const [first] = engines;
  first!.states = { [path]: Object.fromEntries(Object.keys(state).map((key) => [key, false])) };
  await first!.kill();
  await until(async () => (await complete(url, false)).text.includes(engines[1]!.name));
  await first!.start();
  const reached = async (): Promise<Set<string>> => {
    const texts = [await complete(url, false), await complete(url, false)].map(({ text }) => text);
    return new Set(engines.map(({ name }) => name).filter((name) => texts.join("").includes(name)));
  };
  await until(async () => (await reached()).size === 2);
  first!.states = { [path]: state };
  await until(async () => {
    const seen = await reached();
    return seen.size === 1 && !seen.has(first!.name);
  });
  first!.states = {};
  await until(async () => (await reached()).size === 2);
});
