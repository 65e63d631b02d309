// Owns the proof that a long prompt is computed by one engine and pulled by another where that answers earlier, and only there.
import { expect, onTestFinished, test } from "vitest";
import { call, gatewayBefore, until } from "../../support/gateways.ts";
import type { Answer, Scene } from "../../support/gateways.ts";
import { tokensOf } from "../../support/sim-engine.ts";
import type { SimEngine } from "../../support/sim-engine.ts";
import { SimPublisher } from "../../support/sim-publisher.ts";

const TOKENS = 512;

interface Split extends Scene {
  answers: SimEngine;
  computes: SimEngine;
  /** What the computing engine saves of a prompt. */
  save: (tokens: number[]) => Promise<void>;
  ask(prompt: string): Promise<Answer>;
  /** Makes whoever answers busy for two seconds, as it is believed, until the call. */
  occupy(): Promise<() => void>;
}

/** An engine that answers, and one that computes prompts for it. */
async function split(): Promise<Split> {
  const publishers = [
    await new SimPublisher({ blockSize: 16 }).start(),
    await new SimPublisher({ blockSize: 16 }).start(),
  ];
  onTestFinished(() => {
    for (const publisher of publishers) publisher.stop();
  });
  const given = { preset: "earliest-token", prefillTokens: TOKENS } as const;
  const scene = await gatewayBefore([["m"], ["m"]], given, publishers, [1]);
  const [answers, computes] = scene.engines as [SimEngine, SimEngine];
  const made: Split = {
    ...scene,
    answers,
    computes,
    save: async (tokens) => {
      await publishers[1]!.take(tokens);
      await publishers[1]!.tellVault(tokens);
    },
    ask: (prompt) =>
      call(scene.url, "/v1/completions", {
        body: JSON.stringify({ model: "m", prompt, stream: true, max_tokens: 5 }),
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
  // As vLLM does: it tells of what was saved with its next step.
  let untold: number[] | null = null;
  computes.onPrompt = async (tokens) => {
    if (untold !== null) await made.save(untold);
    untold = tokens.length > TOKENS ? tokens : null;
  };
  await until(async () => {
    const { text } = await call(scene.url, "/metrics");
    return [...text.matchAll(/events_live\{.*\} 1$/gm)].length === 2;
  });
  await publishers[0]!.tellVault(tokensOf("other".repeat(10)));
  await until(async () =>
    (await call(scene.url, "/metrics")).text.includes(`engine="${answers.name}",tier="vault"} 3`),
  );
  return made;
}

test("where whoever answers is busy, a long prompt is computed by the other, and pulled", async () => {
  const { answers, computes, ask, occupy } = await split();
  const open = await occupy();
  expect(computes.asked).toHaveLength(0);
  const prompt = `${"ab".repeat(400)}!`;
  const asked = ask(prompt);
  await until(() => answers.asked.length === 2);
  expect(JSON.parse(computes.asked[0]!.body)).toMatchObject({
    prompt,
    max_tokens: 1,
    stream: false,
  });
  const body = JSON.stringify({ model: "m", prompt, stream: true, max_tokens: 5 });
  expect(answers.asked[1]!.body).toBe(body);
  open();
  const { headers, text } = await asked;
  expect(headers["x-gateway-destination-endpoint-served"]).toBe(answers.name);
  expect([headers["x-tierkv-vault-tokens"], headers["x-tierkv-reason"]]).toEqual(["800", "vault"]);
  expect(text.endsWith("data: [DONE]\n\n")).toBe(true);
});

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

test("where that engine fails, or saves nothing, whoever answers computes", async () => {
  const made = await split();
  const { answers, computes, ask, occupy } = made;
  const open = await occupy();
  made.save = () => Promise.resolve();
  computes.fault = "reset";
  const failed = ask("gh".repeat(400));
  await until(() => answers.asked.length === 2);
  computes.fault = "none";
  await until(async () =>
    (await call(made.url, "/metrics")).text.includes(`engine_up{engine="${computes.name}"} 1`),
  );
  const unsaved = ask("ij".repeat(400));
  await until(() => answers.asked.length === 3);
  expect(computes.asked.some(({ body }) => body.includes("ijij"))).toBe(true);
  open();
  for (const answer of [await failed, await unsaved]) {
    expect([answer.code, answer.headers["x-tierkv-vault-tokens"]]).toEqual([200, "0"]);
  }
});
