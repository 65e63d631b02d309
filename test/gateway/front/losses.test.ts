// Owns the proof that one request takes few engines down, and that a hung engine's requests leave it.
import { expect, onTestFinished, test, vi } from "vitest";
import { GATEWAY_LOSSES_MAX } from "../../../src/base/limits/gateway.ts";
import { Engine } from "../../../src/gateway/engines/engine.ts";
import { countersIn, Progress } from "../../../src/gateway/engines/progress.ts";
import { call, complete, gatewayBefore, until } from "../../support/gateways.ts";
import type { Answer, Scene } from "../../support/gateways.ts";
import type { SimEngine } from "../../support/sim-engine.ts";

vi.mock("../../../src/base/limits/gateway.ts", async (original) => ({
  ...(await original<object>()),
  GATEWAY_HEALTH_MS: 20,
  GATEWAY_STALL_MS: 200,
  GATEWAY_HEALTH_TIMEOUT_MS: 300,
}));

const POISON = "poison";
const JSON_TYPE = { "content-type": "application/json" };

function ask(url: string, prompt: string, isStream = false): Promise<Answer> {
  const body = JSON.stringify({ model: "m", prompt, ...(isStream ? { stream: true } : {}) });
  return call(url, "/v1/completions", { body, headers: JSON_TYPE });
}

async function poisonable(count: number, more = {}): Promise<Scene> {
  const models = Array.from({ length: count }, () => ["m"]);
  const scene = await gatewayBefore(models, { preset: "least-load", ...more });
  for (const engine of scene.engines) engine.poison = POISON;
  return scene;
}

const askedFor = (engines: readonly SimEngine[], text: string): number =>
  engines.flatMap(({ asked }) => asked).filter(({ body }) => body.includes(text)).length;

test.each([false, true])(
  "a request under which its engine dies alone goes to no other (stream: %s)",
  async (isStream) => {
    const { engines, url } = await poisonable(3);
    const { code, text, headers } = await ask(url, POISON, isStream);
    expect([code, headers["x-should-retry"]]).toEqual([502, "false"]);
    expect(text).toContain("went down while this request waited");
    expect(askedFor(engines, POISON)).toBe(1);
    expect((await ask(url, "hello")).code).toBe(200);
  },
);

test.each(["a completion", "a sequence"])(
  "%s whose connection breaks goes back to its engine while that is healthy",
  async (kind) => {
    const scene = await gatewayBefore([["m"], ["m"], ["m"]], { preset: "ring", sequences: true });
    const { engines, url } = scene;
    const body = { prompt: "hello", user: "s", seq_id: "s", stream: true };
    let open: () => void = () => {};
    const gate = new Promise<void>((resolve) => (open = resolve));
    for (const engine of engines) Object.assign(engine, { gate, fault: "reset", hasChoices: true });
    const answer =
      kind === "a sequence"
        ? call(url, "/generate", {
            body: JSON.stringify({ ...body, model_name: "m" }),
            headers: JSON_TYPE,
          })
        : call(url, "/v1/completions", {
            body: JSON.stringify({ ...body, model: "m" }),
            headers: JSON_TYPE,
          });
    const asked = (): SimEngine[] => engines.filter(({ asked: all }) => all.length > 0);
    await until(() => asked().length === 1);
    const [owner] = asked();
    // The request that waits there breaks; later ones do not.
    for (const engine of engines) engine.fault = "none";
    open();
    const { code, text } = await answer;
    expect(code).toBe(200);
    expect(text).toContain(kind === "a sequence" ? '"done"' : "[DONE]");
    expect(owner!.asked).toHaveLength(2);
    expect(asked()).toEqual([owner]);
  },
);

test("among others it takes as many engines as may be lost and one; the others are answered", async () => {
  const { engines, url } = await poisonable(4);
  let open: () => void = () => {};
  const gate = new Promise<void>((resolve) => (open = resolve));
  for (const engine of engines) engine.gate = gate;
  const others = Array.from({ length: 8 }, () => ask(url, "hello", true));
  await until(() => askedFor(engines, "hello") === 8);
  const { code } = await ask(url, POISON);
  expect(code).toBe(502);
  expect(askedFor(engines, POISON)).toBe(1 + GATEWAY_LOSSES_MAX);
  open();
  for (const { text } of await Promise.all(others)) expect(text).toContain("[DONE]");
});

test("a prompt that ends the engine that computes it ahead goes to no other", async () => {
  const more = { preset: "earliest-token", prefillTokens: 4 } as const;
  const scene = await gatewayBefore([["m"], ["m"]], more, [], [0]);
  const { engines, url } = scene;
  const prompt = Array.from({ length: 4000 }, (_none, at) => at);
  const asking = (): Promise<Answer> =>
    call(url, "/v1/completions", {
      body: JSON.stringify({ model: "m", prompt, user: POISON }),
      headers: JSON_TYPE,
    });
  // A long queue at the answering engine makes computing ahead worth while.
  engines[1]!.gate = new Promise(() => {});
  for (let n = 0; n < 2; n += 1) void complete(url, false).catch(() => {});
  const held = asking();
  void held.catch(() => {});
  await until(() => engines[1]!.asked.length === 3);
  engines[0]!.poison = POISON;
  const before = engines[1]!.asked.length;
  expect((await asking()).code).toBe(502);
  expect(engines[1]!.asked).toHaveLength(before);
});

test("a sequence leaves an engine that is declared down, and not one that it ended", async () => {
  const { engines, url } = await poisonable(3, { sequences: true });
  const generate = (prompt: string): Promise<Answer> =>
    call(url, "/generate", {
      body: JSON.stringify({ prompt, seq_id: "s", model_name: "m" }),
      headers: JSON_TYPE,
    });
  for (const engine of engines) engine.hasChoices = true;
  const asked = (): SimEngine[] => engines.filter(({ asked: all }) => all.length > 0);
  for (const engine of engines) engine.fault = "silent";
  const silent = generate("hello");
  await until(() => asked().length === 1);
  const [owner] = asked();
  for (const engine of engines) if (engine !== owner) engine.fault = "none";
  owner!.isHealthy = false;
  expect((await silent).text).toContain('"done"');
  const { code } = await generate(POISON);
  expect([code, askedFor(engines, POISON)]).toEqual([502, 1]);
});

const isUp = async (url: string, { name }: SimEngine): Promise<boolean> =>
  (await call(url, "/metrics")).text.includes(`engine_up{engine="${name}"} 1`);

test("an engine whose core hangs is down until it computes a token, and its requests go on elsewhere", async () => {
  const { engines, url } = await gatewayBefore([["m"], ["m"]]);
  const [hung, other] = engines;
  let open: () => void = () => {};
  hung!.gate = new Promise((resolve) => (open = resolve));
  for (const engine of engines) engine.metrics = () => "vllm:iteration_tokens_total_count 7\n";
  const answers = await Promise.all([complete(url, true), complete(url, true)]);
  for (const { text } of answers) {
    expect(text).toContain(other!.name);
    expect(text).toContain("[DONE]");
  }
  const tries = (): number => hung!.asked.filter(({ body }) => !body.includes("stream")).length;
  const before = tries();
  await until(() => tries() >= before + 2);
  expect(await isUp(url, hung!)).toBe(false);
  open();
  await until(() => isUp(url, hung!));
});

test.each([
  ["counters that change", (n: number) => `vllm:iteration_tokens_total_count ${n}\n`],
  ["no counters at all", () => "http_requests_total 1\n"],
])("an engine with %s keeps its requests, however long they take", async (_name, metrics) => {
  const { engines, url } = await gatewayBefore([["m"], ["m"]], { preset: "round-robin" });
  for (const engine of engines) engine.metrics = () => metrics(engine.scrapes);
  let open: () => void = () => {};
  const gate = new Promise<void>((resolve) => (open = resolve));
  for (const engine of engines) engine.gate = gate;
  const answer = complete(url, true);
  await until(() => engines.some(({ scrapes }) => scrapes >= 6));
  open();
  expect((await answer).text).toContain("[DONE]");
  expect(engines.flatMap(({ asked }) => asked)).toHaveLength(1);
});

/** Moves a clock of its own by steps of a health check. */
async function checked(
  progress: Progress,
  steps: number,
  read: () => string | null,
): Promise<(number | null)[]> {
  const told: (number | null)[] = [];
  for (let step = 0; step < steps; step += 1) {
    vi.advanceTimersByTime(20);
    told.push(await progress.stalledMs(() => Promise.resolve(read())));
  }
  return told;
}

test("events alone show progress, or that there is none", async () => {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  const engine = new Engine("127.0.0.1:1", 1);
  const progress = new Progress(engine);
  engine.publishers = 1;
  engine.untilBegun(new AbortController().signal);
  const moving = await checked(progress, 50, () => {
    engine.noteSign();
    return null;
  });
  for (let step = 0; step < 50; step += 1) {
    engine.noteSign();
    moving.push(...(await checked(progress, 1, () => null)));
  }
  expect(moving.every((told) => told === null)).toBe(true);
  const still = await checked(progress, 12, () => null);
  expect(still.findIndex((told) => told !== null)).toBe(9);
});

test("a long predicted first token is awaited longer", async () => {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  const engine = new Engine("127.0.0.1:1", 1);
  const progress = new Progress(engine);
  engine.untilBegun(new AbortController().signal, 100);
  const told = await checked(progress, 24, () => "vllm:x 1");
  // Four times the predicted time, not 200 ms.
  expect(told.findIndex((ms) => ms !== null)).toBe(20);
});

test("a server's own counters are no sign of its core", () => {
  const text = 'http_requests_total 5\nvllm:a{x="1"} 2\nvllm:b_created{x="1"} 9\n# HELP vllm:a\n';
  expect(countersIn(text)).toBe('vllm:a{x="1"} 2');
  expect(countersIn("http_requests_total 5\n")).toBeNull();
});

/** A gateway before two engines with room for one request each; the first holds the stored answer `resp_0`. */
async function holding(): Promise<Scene & { goOn(): Promise<Answer> }> {
  // Whoever waits here by mistake outlasts the test.
  const scene = await gatewayBefore([["m"], ["m"]], { inFlightMax: 1, waitMs: 600_000 });
  const { engines, url } = scene;
  engines[0]!.more = { id: "resp_0" };
  const create = { body: '{"model":"m","input":"x"}', headers: JSON_TYPE };
  while (engines[0]!.asked.length === 0) await call(url, "/v1/responses", create);
  for (const engine of engines) engine.asked.length = 0;
  const next = '{"model":"m","input":"y","previous_response_id":"resp_0"}';
  return { ...scene, goOn: () => call(url, "/v1/responses", { body: next, headers: JSON_TYPE }) };
}

test("a request for a stored answer ends as soon as the engine that holds it is down", async () => {
  const { engines, url, goOn } = await holding();
  const [holder, other] = engines as [SimEngine, SimEngine];
  let open: () => void = () => {};
  const gate = new Promise<void>((resolve) => (open = resolve));
  for (const engine of engines) engine.gate = gate;
  const sent = goOn();
  await until(() => holder.asked.length === 1);
  const elsewhere = ask(url, "hello");
  await until(() => other.asked.length === 1);
  // These wait: one for any engine, then one for the holder alone.
  const waiting = ask(url, "next");
  await until(async () => (await waitingAt(url)) === 1);
  const waits = goOn();
  await until(async () => (await waitingAt(url)) === 2);
  holder.isHealthy = false;
  for (const { code, headers, text } of [await sent, await waits, await goOn()]) {
    expect([code, headers["retry-after"]]).toEqual([503, "1"]);
    expect(text).toContain("the engine that holds this stored answer");
  }
  open();
  for (const one of [elsewhere, waiting]) expect((await one).code).toBe(200);
});

test("a request that waits for the engine of its stored answer holds up no others", async () => {
  const { engines, url, goOn } = await holding();
  const [holder, other] = engines as [SimEngine, SimEngine];
  let open: () => void = () => {};
  holder.gate = new Promise<void>((resolve) => (open = resolve));
  const sent = goOn();
  await until(() => holder.asked.length === 1);
  const waits = goOn();
  await until(async () => (await waitingAt(url)) === 1);
  let release: () => void = () => {};
  other.gate = new Promise<void>((resolve) => (release = resolve));
  const first = ask(url, "hello");
  await until(() => other.asked.length === 1);
  const second = ask(url, "next");
  await until(async () => (await waitingAt(url)) === 2);
  release();
  for (const one of [first, second]) expect((await one).code).toBe(200);
  open();
  for (const one of [sent, waits]) expect((await one).code).toBe(200);
});

test("an engine's own refusal of a stored answer passes", async () => {
  const { engines, goOn } = await holding();
  engines[0]!.fault = "busy";
  const { code, headers, text } = await goOn();
  expect([code, headers["retry-after"], text]).toEqual([503, "7", "busy"]);
});

async function waitingAt(url: string): Promise<number> {
  const { text } = await call(url, "/metrics");
  return Number(/^tierkv_gateway_waiting (\d+)$/m.exec(text)?.[1]);
}
