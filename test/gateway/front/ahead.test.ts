// Owns the proof that a long prompt is computed by one engine and handed over to another where that answers earlier, and only there.
import { writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { pino } from "pino";
import { expect, onTestFinished, test } from "vitest";
import type { Logger } from "../../../src/base/log.ts";
import type { Decision } from "../../../src/gateway/score/decisions.ts";
import { runInside } from "../../support/command-line.ts";
import { call, gatewayBefore, until } from "../../support/gateways.ts";
import type { Answer, Scene } from "../../support/gateways.ts";
import { tokensOf } from "../../support/sim-engine.ts";
import type { SimEngine } from "../../support/sim-engine.ts";
import { SimPublisher } from "../../support/sim-publisher.ts";

const TOKENS = 512;
/** What an engine takes that computes ahead, ms. */
const TAKES_MS = 300;
const HANDOFF = { tokens: 800, key: "of the prompt" };

interface Split extends Scene {
  answers: SimEngine;
  computes: SimEngine;
  ask(prompt: string, more?: object): Promise<Answer>;
  send(path: string, body: object): Promise<Answer>;
  /** Makes whoever answers busy for two seconds, as it is believed, until the call. */
  occupy(): Promise<() => void>;
}

/** Renders a prompt: a token for each of its characters. */
const ofText = (text: unknown): number[] => tokensOf(JSON.stringify(text));

/** An engine that answers, and one that computes prompts for it. */
async function split(logger?: Logger): Promise<Split> {
  const publishers = [
    await new SimPublisher({ blockSize: 16 }).start(),
    await new SimPublisher({ blockSize: 16 }).start(),
  ];
  onTestFinished(() => {
    for (const publisher of publishers) publisher.stop();
  });
  const given = { preset: "earliest-token", prefillTokens: TOKENS } as const;
  const scene = await gatewayBefore(
    [["m"], ["m"]],
    given,
    publishers,
    [1],
    undefined,
    undefined,
    logger,
  );
  const [answers, computes] = scene.engines as [SimEngine, SimEngine];
  const made: Split = {
    ...scene,
    answers,
    computes,
    ask: (prompt, more = {}) =>
      made.send("/v1/completions", { prompt, stream: true, max_tokens: 5, ...more }),
    send: (path, body) =>
      call(scene.url, path, {
        body: JSON.stringify({ model: "m", ...body }),
        headers: { "content-type": "application/json" },
      }),
    async occupy() {
      let open: () => void = () => {};
      answers.gate = new Promise((resolve) => (open = resolve));
      const before = answers.asked.length;
      const long = made.ask("long".repeat(5000));
      await until(() => answers.asked.length > before);
      onTestFinished(async () => void (await long.catch(() => {})));
      return open;
    },
  };
  computes.more = { kv_transfer_params: { tierkv: { handoff: HANDOFF } } };
  await until(async () => {
    const { text } = await call(scene.url, "/metrics");
    return [...text.matchAll(/events_live\{.*\} 1$/gm)].length === 2;
  });
  return made;
}

test("where whoever answers is busy, a long prompt is computed by the other, and handed over", async () => {
  const { answers, computes, ask, occupy, url } = await split();
  const open = await occupy();
  expect(computes.asked).toHaveLength(0);
  const prompt = `${"ab".repeat(400)}!`;
  const asked = ask(prompt);
  await until(() => answers.asked.length === 2);
  expect(JSON.parse(computes.asked[0]!.body)).toMatchObject({
    prompt,
    max_tokens: 1,
    stream: false,
    kv_transfer_params: { tierkv: { handoff: true } },
  });
  // Its client asked for no report, and gets none.
  const params = { kv_transfer_params: { tierkv: { report: false, handoff: HANDOFF } } };
  const body = { model: "m", prompt, stream: true, max_tokens: 5, ...params };
  expect(JSON.parse(answers.asked[1]!.body)).toEqual(body);
  open();
  const { headers, text } = await asked;
  expect(headers["x-gateway-destination-endpoint-served"]).toBe(answers.name);
  expect([headers["x-tierkv-vault-tokens"], headers["x-tierkv-reason"]]).toEqual(["800", "vault"]);
  expect(text.endsWith("data: [DONE]\n\n")).toBe(true);
  const { text: figures } = await call(url, "/metrics");
  expect(figures).toContain(
    `tierkv_gateway_handoffs_total{engine="${computes.name}",outcome="handed_over"} 1`,
  );
});

test("times of an answer include the engine that computed its prompt first, and say which", async () => {
  const { answers, computes, ask, occupy, socket } = await split();
  const open = await occupy();
  let computed: () => void = () => {};
  computes.gate = new Promise((resolve) => (computed = resolve));
  const asked = ask("cd".repeat(400));
  await until(() => computes.asked.length === 1);
  await new Promise((resolve) => setTimeout(resolve, TAKES_MS));
  computed();
  await until(() => answers.asked.length === 2);
  open();
  const { headers } = await asked;
  const config = join(dirname(socket), "tierkv.toml");
  writeFileSync(config, `[gateway]\nsocket = "${socket}"\n`);
  const argv = ["--config", config, "gateway"];
  const { stdout } = await runInside([...argv, "explain", "--json"]);
  const [decision] = (JSON.parse(stdout) as { requests: Decision[] }).requests;
  const { prefilled, predictedMs, measuredMs } = decision!;
  expect(prefilled).toMatchObject({ engine: computes.name, tokens: HANDOFF.tokens });
  expect(prefilled!.measuredMs).toBeGreaterThan(TAKES_MS);
  expect(measuredMs).toBeGreaterThan(prefilled!.measuredMs);
  expect(predictedMs).toBeGreaterThan(prefilled!.predictedMs);
  expect(headers["x-tierkv-predicted-ttft-ms"]).toBe(predictedMs!.toFixed(1));
  const { stdout: shown } = await runInside([...argv, "explain"]);
  expect(shown).toContain(`${computes.name}  computed 800 tokens first: predicted `);
  const { stdout: status } = await runInside([...argv, "status"]);
  expect(status).toContain(`${computes.name}  up  prefill  in flight: 0`);
});

test("what a client says itself in its parameters stays", async () => {
  const { answers, ask, occupy } = await split();
  const open = await occupy();
  const own = { max_load_tokens: 7, tierkv: { session: "chat", keep_s: 5 } };
  const asked = ask("kl".repeat(400), { kv_transfer_params: own });
  await until(() => answers.asked.length === 2);
  expect(JSON.parse(answers.asked[1]!.body)).toMatchObject({
    kv_transfer_params: { ...own, tierkv: { ...own.tierkv, report: true, handoff: HANDOFF } },
  });
  open();
  expect((await asked).code).toBe(200);
});

const LONG = "op".repeat(400);
const MESSAGES = [{ role: "user", content: LONG }];

test.each([
  [
    "a chat",
    "/v1/chat/completions",
    { messages: MESSAGES, max_tokens: 5 },
    { max_tokens: 1, n: 1 },
  ],
  [
    "a newer chat",
    "/v1/chat/completions",
    { messages: MESSAGES, max_completion_tokens: 5 },
    { max_tokens: 1, max_completion_tokens: 1, n: 1 },
  ],
  ["a message", "/v1/messages", { messages: MESSAGES, max_tokens: 5 }, { max_tokens: 1 }],
  [
    "a response",
    "/v1/responses",
    { input: LONG, max_output_tokens: 5, store: true, background: true },
    { max_output_tokens: 1, store: false, background: false },
  ],
  ["an invocation", "/invocations", { prompt: LONG, max_tokens: 5 }, { max_tokens: 1, n: 1 }],
])(
  "%s is computed ahead for one token, and leaves nothing stored",
  async (_name, path, body, one) => {
    const { answers, computes, send, occupy } = await split();
    for (const engine of [answers, computes]) {
      engine.rendered = (_path, { prompt, messages, input }) => ofText(prompt ?? messages ?? input);
    }
    const open = await occupy();
    const asked = send(path, { ...body, stream: true });
    await until(() => answers.asked.length === 2);
    const params = { kv_transfer_params: { tierkv: { report: false, handoff: true } } };
    const given = { model: "m", ...body, stream: false, ...one, ...params };
    expect(computes.asked.map(({ body: text }) => JSON.parse(text) as unknown)).toEqual([given]);
    expect(JSON.parse(answers.asked[1]!.body)).toMatchObject(body);
    open();
    expect((await asked).code).toBe(200);
  },
);

test.each([
  ["scored", "/v1/completions", { prompt: LONG, prompt_logprobs: 1 }],
  ["echoed", "/v1/chat/completions", { messages: MESSAGES, echo: true }],
  [
    "thought about",
    "/v1/messages",
    { messages: MESSAGES, max_tokens: 2000, thinking: { type: "enabled", budget_tokens: 1024 } },
  ],
])(
  "a prompt that is %s is computed by the engine that answers alone",
  async (_name, path, body) => {
    const { answers, computes, send, occupy } = await split();
    for (const engine of [answers, computes]) {
      engine.rendered = (_path, { prompt, messages }) => ofText(prompt ?? messages);
    }
    const open = await occupy();
    const asked = send(path, body);
    await until(() => answers.asked.length === 2);
    expect(computes.asked).toEqual([]);
    open();
    expect((await asked).code).toBe(200);
  },
);

test("an engine that computes for others answers nobody, and does nothing where another one is idle", async () => {
  const { answers, computes, ask, occupy, url } = await split();
  for (const prompt of ["short", "cd".repeat(400)]) expect((await ask(prompt)).code).toBe(200);
  expect([answers.asked.length, computes.asked.length]).toEqual([2, 0]);
  const open = await occupy();
  const short = ask("ef".repeat(200));
  await until(() => answers.asked.length === 4);
  expect(computes.asked).toHaveLength(0);
  open();
  expect((await short).code).toBe(200);
  await answers.kill();
  await until(async () => (await ask("short")).code === 503);
  expect(computes.asked).toHaveLength(0);
  expect((await call(url, "/health")).code).toBe(503);
});

test("a hand-over that succeeds after a failed one is logged once", async () => {
  const lines: string[] = [];
  const { answers, computes, ask, occupy, url } = await split(
    pino({ level: "info" }, { write: (line) => lines.push(line) }),
  );
  const open = await occupy();
  computes.fault = "reset";
  const asked = [ask("uv".repeat(400))];
  await until(() => answers.asked.length === 2);
  computes.fault = "none";
  await until(async () =>
    (await call(url, "/metrics")).text.includes(`engine_up{engine="${computes.name}"} 1`),
  );
  for (const [at, prompt] of ["wx", "yz"].entries()) {
    asked.push(ask(prompt.repeat(400)));
    await until(() => answers.asked.length === 3 + at);
  }
  open();
  for (const answer of asked) expect((await answer).code).toBe(200);
  const said = lines.filter((line) => line.includes("handed over"));
  expect(said.map((line) => (JSON.parse(line) as { level: number }).level)).toEqual([40, 30]);
});

test("where that engine fails, or hands nothing over, whoever answers computes", async () => {
  const lines: string[] = [];
  const made = await split(pino({ level: "info" }, { write: (line) => lines.push(line) }));
  const { answers, computes, ask, occupy } = made;
  const said = (): object[] =>
    lines.filter((line) => line.includes("handed over")).map((line) => JSON.parse(line) as object);
  const open = await occupy();
  computes.more = {};
  computes.fault = "reset";
  const failed = ask("gh".repeat(400));
  await until(() => answers.asked.length === 2);
  const reason: unknown = expect.stringMatching(/\S/);
  const once = {
    level: 40,
    engine: computes.name,
    reason,
    msg: expect.stringMatching(/^a prompt was not handed over: /) as unknown,
  };
  expect(said()).toMatchObject([once]);
  computes.fault = "none";
  await until(async () =>
    (await call(made.url, "/metrics")).text.includes(`engine_up{engine="${computes.name}"} 1`),
  );
  const untold = ask("ij".repeat(400));
  await until(() => answers.asked.length === 3);
  expect(computes.asked.at(-1)!.body).toContain("ijij");
  // That was work for nothing: it is not asked again for a while.
  const later = ask("mn".repeat(400));
  await until(() => answers.asked.length === 4);
  expect(computes.asked.at(-1)!.body).toContain("ijij");
  open();
  for (const answer of [await failed, await untold, await later]) {
    expect([answer.code, answer.headers["x-tierkv-vault-tokens"]]).toEqual([200, "0"]);
  }
  expect(said(), "only a change is logged").toHaveLength(1);
});
