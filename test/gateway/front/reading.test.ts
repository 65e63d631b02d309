// Owns the proof that objectives and fairness keys of requests decide who waits and who is shed, told apart from there being no engine.
import { expect, test } from "vitest";
import { call, gatewayBefore, keyFile, until } from "../../support/gateways.ts";
import type { Answer } from "../../support/gateways.ts";

const OBJECTIVES = new Map([
  ["chat", 10],
  ["batch", -1],
]);

function ask(
  url: string,
  tokens: number,
  headers: Record<string, string> = {},
  seed = 0,
): Promise<Answer> {
  const prompt = Array.from({ length: tokens }, (_none, at) => seed * 10_000 + at);
  const body = JSON.stringify({ model: "m", prompt, stream: true });
  const all = { "content-type": "application/json", ...headers };
  return call(url, "/v1/completions", { body, headers: all });
}

const objective = (name: string): Record<string, string> => ({
  "x-gateway-inference-objective": name,
});
const fairness = (name: string): Record<string, string> => ({
  "x-gateway-inference-fairness-id": name,
});

test("of those that wait, chat goes first, batch last, and a key that floods shares with one that does not", async () => {
  const given = { objectives: OBJECTIVES, inFlightMax: 1 };
  const { url, engines } = await gatewayBefore([["m"]], given);
  const [engine] = engines;
  let open: () => void = () => {};
  engine!.gate = new Promise((resolve) => (open = resolve));
  const waiting = async (): Promise<number> =>
    Number(/^tierkv_gateway_waiting (\d+)/m.exec((await call(url, "/metrics")).text)?.[1]);
  const sent: Promise<Answer>[] = [ask(url, 64)];
  await until(() => engine!.asked.length === 1);
  const names = ["batch", "flood0", "flood1", "flood2", "other", "chat"];
  for (const [at, name] of names.entries()) {
    const key = fairness(name.replace(/\d/, ""));
    const id = { "x-request-id": name };
    sent.push(ask(url, 64, { ...key, ...objective(name), ...id }));
    await until(async () => (await waiting()) === at + 1);
  }
  open();
  for (const { code } of await Promise.all(sent)) expect(code).toBe(200);
  const order = engine!.asked.slice(1).map(({ headers }) => headers["x-request-id"]);
  expect(order).toEqual(["chat", "flood0", "other", "flood1", "flood2", "batch"]);
});

test("what may be shed is, before others; so is a tenant's flood, whatever key its client names", async () => {
  const keys = keyFile("a a a", "b b b");
  // Of 10,000 tokens a second, while nothing is known: 10 s each.
  const given = { objectives: OBJECTIVES, ttftMs: 25_000, preset: "earliest-token", keys } as const;
  const { url, engines } = await gatewayBefore([["m"]], given);
  const [engine] = engines;
  let open: () => void = () => {};
  engine!.gate = new Promise((resolve) => (open = resolve));
  let seed = 0;
  const as = (who: string, headers: Record<string, string> = {}): Promise<Answer> =>
    ask(url, 100_000, { authorization: `Bearer ${who}`, ...headers }, (seed += 1));
  const first = as("a");
  await until(() => engine!.asked.length === 1);
  const shed = await as("b", objective("batch"));
  expect([shed.code, shed.headers["retry-after"]]).toEqual([429, "1"]);
  expect((await as("a", fairness("another"))).code).toBe(429);
  const second = as("b");
  await until(() => engine!.asked.length === 2);
  open();
  expect([(await first).code, (await second).code]).toEqual([200, 200]);
  await engine!.kill();
  await until(async () => (await as("a")).code === 503);
});
