// Owns the accuracy of the gateway's predictions: predicted and measured first tokens of real engines.
import { once } from "node:events";
import { Agent, request } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { thisMachine } from "../dist/extras/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe, quantile } from "./lib/figures.js";
import { freePort } from "./lib/ports.js";
import { Stand } from "./lib/stand.js";
import { chanceOf } from "./sim/chance.js";

const MODEL = { kind: "llama", hidden: 256, layers: 2, heads: 4, "kv-heads": 2, "head-dim": 64 };
const VOCAB = 1024;
const MODEL_LEN = 13_312;
const [SHORTEST, LONGEST] = [1000, 12_000];
const START_MS = 600_000;
/** Prompts sent one after the other to teach the engines' rates; then measured ones, some of which extend earlier prompts. */
const [WARM, MEASURED] = [12, 60];
const GOES_ON = 0.3;
/** Share of both engines' capacity; arrivals are random, so that some requests wait. */
const LOAD = 0.4;

export const title =
  "First tokens that the gateway predicts, before two real engines on a core each";

export async function run({ isQuick, say }) {
  const stand = new Stand();
  try {
    const { dtype, cores } = thisMachine();
    const shape = { ...MODEL, seed: 1, vocab: VOCAB, dtype, "max-position": MODEL_LEN };
    const model = await stand.makeModel(shape);
    say("two engines start");
    const engines = await Promise.all(
      [0, 1].map((at) => startEngine(stand, model, dtype, cores[at % cores.length])),
    );
    const quoted = (name) => engines.map((engine) => `"127.0.0.1:${engine[name]}"`).join(", ");
    const keys = { engines: "port", events: "events", replays: "replays" };
    const gateway = await stand.gateway([
      ...Object.entries(keys).map(([key, name]) => `${key} = [${quoted(name)}]`),
      "tokenize_ms = 60000",
    ]);
    const decisions = await load(gateway, model, isQuick ? MEASURED / 4 : MEASURED, say);
    return resultOf(decisions);
  } finally {
    await stand.close();
  }
}

async function startEngine(stand, model, dtype, core) {
  const [port, events, replays] = [await freePort(), await freePort(), await freePort()];
  const publishing = {
    enable_kv_cache_events: true,
    publisher: "zmq",
    endpoint: `tcp://*:${events}`,
    replay_endpoint: `tcp://127.0.0.1:${replays}`,
  };
  const flags = {
    model,
    dtype,
    port,
    host: "127.0.0.1",
    "max-model-len": MODEL_LEN,
    "kv-events-config": JSON.stringify(publishing),
  };
  const args = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, String(value)]);
  await stand.server(
    [
      "-m",
      "vllm.entrypoints.openai.api_server",
      "--enforce-eager",
      "--skip-tokenizer-init",
      ...args,
    ],
    { env: engineEnvironment([core]), url: `http://127.0.0.1:${port}/health`, timeoutMs: START_MS },
  );
  return { port, events, replays };
}

/** Returns the decisions of the measured requests. */
async function load({ url, socket }, model, measured, say) {
  const { next: chance } = chanceOf(1);
  const agent = new Agent({ keepAlive: true });
  const prompts = [];
  const draw = (tokens) => Array.from({ length: tokens }, () => Math.floor(chance() * VOCAB));
  const prompt = () => {
    const tokens = Math.round(SHORTEST + chance() * (LONGEST - SHORTEST));
    const before = prompts[Math.floor(chance() * prompts.length)] ?? [];
    const held = chance() < GOES_ON ? before.slice(0, Math.floor(tokens / 2)) : [];
    const made = [...held, ...draw(tokens - held.length)];
    prompts.push(made);
    return made;
  };
  const ask = (id) => stream(url, agent, { id, model, prompt: prompt() });
  say("prompts one after the other");
  const startedMs = performance.now();
  for (let at = 0; at < WARM; at += 1) await ask(`warm-${at}`);
  const eachMs = (performance.now() - startedMs) / WARM;
  const gapMs = eachMs / (2 * LOAD);
  say(`${measured} prompts, ${Math.round(gapMs)} ms apart on average`);
  const asked = [];
  for (let at = 0; at < measured; at += 1) {
    asked.push(ask(`seen-${at}`));
    await sleep(-gapMs * Math.log(1 - chance()));
  }
  await Promise.all(asked);
  agent.destroy();
  const { requests } = JSON.parse(await get(socket, "/decisions?id=seen-"));
  return requests;
}

/** Resolves at the end of the answer. */
function stream(url, agent, { id, ...asked }) {
  const body = JSON.stringify({ ...asked, stream: true, max_tokens: 2, ignore_eos: true });
  return new Promise((resolve, reject) => {
    const headers = { "content-type": "application/json", "x-request-id": id };
    const sent = request(`${url}/v1/completions`, { method: "POST", agent, headers }, (answer) => {
      if (answer.statusCode !== 200) reject(new Error(`${id} was answered ${answer.statusCode}`));
      answer.resume().on("end", resolve).on("error", reject);
    });
    sent.on("error", reject).end(body);
  });
}

async function get(socketPath, path) {
  const asked = request({ socketPath, path }).end();
  const [answer] = await once(asked, "response");
  let text = "";
  for await (const chunk of answer.setEncoding("utf8")) text += chunk;
  return text;
}

function resultOf(decisions) {
  const errors = decisions.map(
    ({ predictedMs, measuredMs }) => Math.abs(predictedMs - measuredMs) / measuredMs,
  );
  const waited = decisions.filter(({ candidates: [{ waitMs }] }) => waitMs > 0);
  const held = decisions.filter(({ candidates: [one] }) => one.held > 0);
  const error = (at, most) =>
    describe({
      name: `first token predicted, 1k to 12k tokens: error p${at * 100}`,
      unit: "share",
      value: quantile(errors, at),
      floor: { on: "value", most },
    });
  const measured = decisions.map(({ measuredMs }) => measuredMs);
  return {
    figures: [
      error(0.5, 0.15),
      error(0.9, 0.35),
      describe({ name: "first token p50", unit: "ms", value: quantile(measured, 0.5) }),
      describe({ name: "prompts that waited", unit: "", value: waited.length }),
      describe({ name: "prompts held in part", unit: "", value: held.length }),
    ],
    notes: [`of ${decisions.length} prompts at ${100 * LOAD} % of what both engines compute`],
    cells: decisions.map(({ tokens, engine, predictedMs, measuredMs, candidates: [one] }) => ({
      tokens,
      engine,
      predictedMs,
      measuredMs,
      ...one,
    })),
  };
}
