// Owns the proof that a key takes no more than its line allows, is told when it may again, and takes nothing from others.
import { createHash } from "node:crypto";
import { writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { AnswerMeter } from "../../../src/base/native.ts";
import { Visit } from "../../../src/gateway/front/allowance.ts";
import { Keys } from "../../../src/gateway/front/keys.ts";
import { runInside } from "../../support/command-line.ts";
import { call, gatewayBefore, keyFile, until } from "../../support/gateways.ts";
import type { Answer, Scene } from "../../support/gateways.ts";

const digest = (key: string): string => createHash("sha256").update(key).digest("hex");

interface Limited extends Scene {
  ask(key: string, more?: object, path?: string): Promise<Answer>;
}

/** Each line begins with a name, whose key is `k-NAME`. */
async function limited(lines: readonly string[], sequences = false): Promise<Limited> {
  const keys = keyFile(
    ...lines.map((line) => {
      const [name = "", ...rest] = line.split(" ");
      return name === "*" ? line : [name, `k-${name}`, ...rest].join(" ");
    }),
  );
  const scene = await gatewayBefore([["m"]], { keys, sequences });
  const ask = (key: string, more: object = {}, path = "/v1/completions"): Promise<Answer> =>
    call(scene.url, path, {
      body: JSON.stringify({ model: "m", prompt: "p", ...more }),
      headers: { "content-type": "application/json", authorization: `Bearer k-${key}` },
    });
  return { ...scene, ask };
}

test("F94 requests a minute: the next is 429 with the time to wait and the standard headers, another key's is not", async () => {
  const { ask, engines } = await limited(["a requests=2", "b requests=2", "free"]);
  const first = await ask("a");
  expect(first.code).toBe(200);
  expect(first.headers).toMatchObject({
    "x-ratelimit-limit-requests": "2",
    "x-ratelimit-remaining-requests": "1",
  });
  expect(Number.parseFloat(String(first.headers["x-ratelimit-reset-requests"]))).toBeGreaterThan(
    25,
  );
  expect(first.headers["x-ratelimit-limit-tokens"]).toBeUndefined();
  expect((await ask("a")).code).toBe(200);
  const late = await ask("a");
  expect(late.code).toBe(429);
  const retryAfterS = Number(late.headers["retry-after"]);
  expect(retryAfterS).toBeGreaterThan(1);
  expect(retryAfterS).toBeLessThanOrEqual(30);
  expect(late.headers).toMatchObject({ "x-ratelimit-remaining-requests": "0" });
  expect(JSON.parse(late.text)).toMatchObject({ error: { type: "RateLimitError", code: 429 } });
  expect(engines[0]!.asked).toHaveLength(2);
  expect((await ask("b")).code).toBe(200);
  const free = await ask("free");
  expect([free.code, free.headers["x-ratelimit-limit-requests"]]).toEqual([200, undefined]);
});

test("what was used up comes back with time, and is never more than a minute's", () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const keys = new Keys(`a ${digest("x")} requests=60`, "f");
  const { allowance } = keys.holderOf({ authorization: "Bearer x" })!;
  const taken = (): number => {
    let count = 0;
    while (allowance!.enter() instanceof Visit) count += 1;
    return count;
  };
  expect(taken()).toBe(60);
  vi.advanceTimersByTime(999);
  expect(taken()).toBe(0);
  vi.advanceTimersByTime(1);
  expect(taken()).toBe(1);
  vi.advanceTimersByTime(600_000);
  expect(taken()).toBe(60);
});

test("F94 tokens a minute: what an answer may have counts until it has ended, and then what it had", async () => {
  const { ask, engines } = await limited(["a tokens=1000"]);
  const left = ({ headers }: Answer): number => Number(headers["x-ratelimit-remaining-tokens"]);
  const prompt = Array.from({ length: 100 }, (_none, at) => at);
  engines[0]!.tokens = 9;
  const first = await ask("a", { prompt, stream: true, max_tokens: 500 });
  expect(left(first)).toBeGreaterThanOrEqual(400);
  expect(left(first)).toBeLessThan(410);
  // 100 of the prompt, 9 events and the last one.
  const second = await ask("a", { prompt, stream: true });
  expect(left(second)).toBeGreaterThanOrEqual(790);
  expect(left(second)).toBeLessThan(800);
  // An engine that tells how many they were is believed: 680 were left.
  engines[0]!.more = { usage: { prompt_tokens: 100, total_tokens: 2000 } };
  expect((await ask("a", { prompt })).code).toBe(200);
  const late = await ask("a", { prompt });
  expect([late.code, left(late)]).toEqual([429, 0]);
  // 1,320 too many at 1,000 a minute.
  expect(Number(late.headers["retry-after"])).toBeGreaterThan(60);
  expect(JSON.parse(late.text)).toMatchObject({ error: { message: /tokens a minute/ } });
});

test("F94 tokens of Anthropic's API are counted, which names them otherwise", async () => {
  const { ask, engines } = await limited(["a tokens=1000"]);
  const usage = { input_tokens: 100, cache_read_input_tokens: 200, output_tokens: 400 };
  engines[0]!.more = { usage };
  expect((await ask("a", {}, "/v1/messages")).code).toBe(200);
  const { headers } = await ask("a", {}, "/v1/messages");
  expect(Number(headers["x-ratelimit-remaining-tokens"])).toBeLessThan(320);
  const meter = new AnswerMeter();
  meter.pass(Buffer.from('data: {"usage":{"input_tokens":9,"output_tokens":0}}\n\n'));
  meter.pass(Buffer.from("data: a\n\ndata: b\n\n"));
  expect(meter.total).toBe(9 + 3);
  meter.pass(Buffer.from('data: {"usage":{"input_tokens":9,"output_tok'));
  meter.pass(Buffer.from('ens":70}}\n\n'));
  expect(meter.total).toBe(9 + 70);
});

test("F94 a request that is refused, or fails, costs no tokens, because nothing was computed; one whose client leaves does", async () => {
  const { ask, engines, url } = await limited(["a tokens=1000"]);
  const prompt = Array.from({ length: 400 }, (_none, at) => at);
  const left = async (): Promise<number> =>
    Number((await ask("a", { prompt: [1] })).headers["x-ratelimit-remaining-tokens"]);
  expect((await ask("a", { prompt, model: "none" })).code).toBe(404);
  engines[0]!.status = 400;
  expect((await ask("a", { prompt, stream: true })).code).toBe(400);
  engines[0]!.fault = "reset";
  expect((await ask("a", { prompt })).code).toBe(502);
  engines[0]!.fault = "none";
  expect(await left()).toBeGreaterThan(980);
  engines[0]!.gate = new Promise(() => {});
  let leave: () => void = () => {};
  const before = engines[0]!.asked.length;
  const gone = call(url, "/v1/completions", {
    body: JSON.stringify({ model: "m", prompt }),
    headers: { "content-type": "application/json", authorization: "Bearer k-a" },
    onRequest: (asked) => (leave = () => void asked.destroy()),
  }).catch(() => null);
  await until(() => engines[0]!.asked.length === before + 1);
  leave();
  await gone;
  await until(() => engines[0]!.aborted > 0);
  engines[0]!.gate = Promise.resolve();
  expect(await left()).toBeLessThan(700);
});

test("F94 requests at once: one more is refused until one has ended, also where a client leaves", async () => {
  const { ask, engines, url } = await limited(["a concurrent=2"]);
  const [engine] = engines;
  let open: () => void = () => {};
  engine!.gate = new Promise((resolve) => (open = resolve));
  const held = ask("a");
  let leave: () => void = () => {};
  const left = call(url, "/v1/completions", {
    body: '{"model":"m"}',
    headers: { "content-type": "application/json", authorization: "Bearer k-a" },
    onRequest: (asked) => (leave = () => void asked.destroy()),
  }).catch(() => null);
  await until(() => engine!.asked.length === 2);
  const more = await ask("a");
  expect([more.code, more.headers["retry-after"]]).toEqual([429, "1"]);
  leave();
  await left;
  await until(() => engine!.aborted === 1);
  const third = ask("a");
  await until(() => engine!.asked.length === 3);
  open();
  expect([(await held).code, (await third).code]).toEqual([200, 200]);
  expect((await ask("a")).code).toBe(200);
});

test("limits of all names, keys of one name together, and both kinds of paths; what the gateway answers itself counts not", async () => {
  const { ask, url } = await limited(["* requests=3", "a", "b requests=1"], true);
  expect((await ask("b")).code).toBe(200);
  expect((await ask("b")).code).toBe(429);
  expect((await ask("a", { seq_id: "s" }, "/generate")).code).toBe(200);
  const { headers } = await ask("a");
  expect(headers["x-ratelimit-remaining-requests"]).toBe("1");
  expect((await ask("a", { seq_id: "s" }, "/generate")).code).toBe(200);
  expect((await ask("a", { seq_id: "s" }, "/generate")).code).toBe(429);
  for (const path of ["/metrics", "/v1/models", "/workers"]) {
    const asked = { headers: { authorization: "Bearer k-a" } };
    expect((await call(url, path, asked)).code, path).toBe(200);
  }
});

test("F94 tokens of the second API are counted, too", async () => {
  const { ask, engines } = await limited(["a tokens=1000"], true);
  Object.assign(engines[0]!, { hasChoices: true, tokens: 200 });
  expect((await ask("a", {}, "/generate")).code).toBe(200);
  const { headers } = await ask("a", {}, "/generate");
  // 200 events and the last one, and two prompts of a few.
  const left = Number(headers["x-ratelimit-remaining-tokens"]);
  expect([left > 750, left < 800]).toEqual([true, true]);
});

test("F103 fields of other kinds than they have are refused or passed on, by both APIs, and the gateway goes on", async () => {
  const { ask, engines, url } = await limited(["a concurrent=50"], true);
  // An object that says by itself how it becomes a number; one that is nested deeper than can be written again.
  let deep: unknown = 1;
  for (let n = 0; n < 2000; n += 1) deep = [deep];
  for (const odd of [{ toString: 0 }, { valueOf: 0, toString: 0 }, [], deep, null, "7"]) {
    for (const name of ["max_tokens", "n", "model_name", "temperature"]) {
      for (const path of ["/generate", "/v1/completions"]) {
        const { code } = await ask("a", { [name]: odd }, path);
        expect([200, 400, 404], `${path} ${name}`).toContain(code);
      }
    }
  }
  const nested = `{"prompt":"p","max_tokens":${"[".repeat(200_000)}${"]".repeat(200_000)}}`;
  const headers = { "content-type": "application/json", authorization: "Bearer k-a" };
  expect((await call(url, "/generate", { body: nested, headers })).code).toBe(400);
  // Nor is an engine suspected for it.
  const metrics = await call(url, "/metrics", { headers });
  expect(metrics.text).toContain(`engine_up{engine="${engines[0]!.name}"} 1`);
  expect(metrics.text).not.toMatch(/retries_total\{.*\} [1-9]/);
});

test("`tierkv gateway status` shows what is left to each name", async () => {
  const { ask, socket } = await limited(["a requests=2 tokens=1000 concurrent=5", "free"]);
  for (let n = 0; n < 3; n += 1) await ask("a");
  const config = join(dirname(socket), "tierkv.toml");
  writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
  const cli = (...argv: string[]): ReturnType<typeof runInside> =>
    runInside(["--config", config, "gateway", "status", ...argv]);
  const { stdout } = await cli();
  expect(stdout).toMatch(
    /key a {2}requests left: 0 of 2 a minute {2}tokens left: 9\d\d of 1000 a minute {2}in flight: 0 of 5 {2}refused: 1/,
  );
  expect(stdout).not.toContain("free");
  const { keys } = JSON.parse((await cli("--json")).stdout) as { keys: unknown[] };
  expect(keys).toMatchObject([{ name: "a", requestsLeft: 0, atOnce: 0, refused: 1 }]);
});

const d = (key: string): string => digest(key);

test.each([
  ["a limit of another name", `a ${d("a")} rpm=1`, "f:1: rpm=1 is none of requests=N"],
  ["one twice", `a ${d("a")} t tokens=1 tokens=2`, "f:1: tokens=2 is none of"],
  ["a word behind it", `a ${d("a")} tokens=1 t`, "f:1: t is none of"],
  ["none at all", `a ${d("a")} requests=0`, "f:1: requests=0 is not within 1 to"],
  ["too many", `a ${d("a")} requests=9999999999`, "f:1: requests=9999999999 is not within"],
  ["two for a name", `a ${d("a")} tokens=1\na ${d("b")}`, "f:2: a has other limits above"],
  ["two for all", "* tokens=1\n* tokens=1", "f:2: this key stands there twice"],
])("a file with %s is refused", (_name, text, says) => {
  expect(() => new Keys(text, "f")).toThrow(says);
});

test("keys of one name share what it may take", () => {
  const keys = new Keys(`a ${d("x")} requests=2\na ${d("y")} requests=2\n`, "f");
  const of = (key: string): unknown =>
    keys.holderOf({ authorization: `Bearer ${key}` })?.allowance?.enter();
  expect([of("x"), of("y"), of("x")].map((one) => typeof one === "object")).toEqual([
    true,
    true,
    true,
  ]);
  expect(of("y")).toMatchObject({ spent: "key_requests" });
  expect(keys.status()).toHaveLength(1);
});
