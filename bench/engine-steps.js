// Owns the figures of an engine's cost: time in our calls per step, without payload copies, with the sidecar running and stopped.
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/extras/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe, quantile } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./engine_steps.py", import.meta.url));
const TIMEOUT_MS = 900_000;
const GIB = 2 ** 30;
const MODEL = { kind: "llama", hidden: 512, layers: 8, heads: 8, "kv-heads": 4, "head-dim": 64 };
const MODEL_LEN = 4096;
const FULL = { rounds: 6, prompts: 4, "prompt-tokens": 1500, "answer-tokens": 120 };
const QUICK = { rounds: 2, prompts: 2, "prompt-tokens": 600, "answer-tokens": 40 };

/** Bounds on a step's time in our calls, whatever the sidecar does. */
const HEALTHY_P99 = { on: "value", most: 1 };
const HEALTHY_P999 = { on: "value", most: 5 };
const STOPPED_MAX = { on: "value", most: 20 };

/** Cores that the engine computes on; sidecar and vault take the rest. */
const PARTS = { shared: "on all cores", reserved: "on all cores but one" };

export const titleOf = (part) =>
  `Time of an engine's step spent in our calls, payload copies apart, computing ${PARTS[part]}`;

export async function run({ isQuick, say, part }) {
  const stand = new Stand();
  try {
    const { dtype, cores } = thisMachine();
    const taken = part === "shared" ? cores : cores.slice(0, Math.max(1, cores.length - 1));
    say("make a model, start vault and sidecar");
    const shape = { ...MODEL, seed: 1, vocab: 1024, dtype, "max-position": MODEL_LEN };
    const model = await stand.makeModel(shape);
    const address = await stand.vault(GIB);
    // The default budgets, so that a stopped sidecar costs as much as in an installation.
    const options = {
      arenaBytes: GIB,
      codec: "int8",
      restore: '[restore]\nwhen = "always"\n',
    };
    const sidecar = await stand.sidecar(address, options);
    const work = isQuick ? QUICK : FULL;
    const flags = { socket: sidecar.socket, "sidecar-pid": sidecar.pid, model, dtype, ...work };
    const args = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, String(value)]);
    say("start a real engine; with the sidecar well, then stopped (SIGSTOP)");
    const measured = await stand.python([SCRIPT, ...args], {
      env: engineEnvironment(taken),
      timeoutMs: TIMEOUT_MS,
    });
    return { figures: figuresOf(measured), notes: notesOf(measured, work) };
  } finally {
    await stand.close();
  }
}

function figuresOf({ healthy, stopped }) {
  const { copyBytes, copySeconds, stepSeconds } = healthy;
  return [
    ...latencies("sidecar well, step", healthy.steps, { p99: HEALTHY_P99, p999: HEALTHY_P999 }),
    ...latencies("sidecar well, step, processor time", healthy.cpu, {}),
    ...latencies("control: a loop of Python after each call", healthy.controls, {}),
    ...latencies("sidecar well, waiting step", healthy.waits, {}),
    ...latencies("sidecar stopped, step", stopped.steps, { max: STOPPED_MAX }),
    ...latencies("sidecar stopped, waiting step", stopped.waits, { max: STOPPED_MAX }),
    single("our share of step time, sidecar well", "%", (sum(healthy.steps) / stepSeconds) * 100),
    single("payload copies, share of step time", "%", (copySeconds / stepSeconds) * 100),
    single("payload copies, pages to slots and back", "GB/s", copyBytes / copySeconds / 1e9),
  ];
}

const single = (name, unit, value) => describe({ name, unit, value });

function latencies(name, seconds, floors) {
  if (seconds.length === 0) return [];
  const line = (what, value, floor) =>
    describe({
      name: `${name}, ${what}`,
      unit: "ms",
      value: value * 1e3,
      ...(floor === undefined ? {} : { floor }),
    });
  return [
    line("p50", quantile(seconds, 0.5)),
    line("p99", quantile(seconds, 0.99), floors.p99),
    line("p99.9", quantile(seconds, 0.999), floors.p999),
    line("max", Math.max(...seconds), floors.max),
  ];
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

const counts = ({ steps, waits }) => `${steps.length} steps and ${waits.length} waiting`;

function slowestLines(state, slowest) {
  return slowest.map(({ call, wall, cpu, gc, waited, preempted, faults }) => {
    const times = [`${ms(wall)} ms`, `${ms(cpu)} of the processor`, `${ms(gc)} collecting`];
    return `slow, ${state}: ${call}: ${times.join(", ")}; waited ${waited}, preempted ${preempted}, faults ${faults}`;
  });
}

const ms = (seconds) => (seconds * 1e3).toFixed(2);

function notesOf(measured, work) {
  const { healthy, stopped, tokensRestored } = measured;
  const { rounds, prompts } = work;
  return [
    "step: one that ran the model; waiting step: one in which all requests wait for blocks, as an engine polls them",
    `vLLM in one process, ${rounds} rounds of ${prompts} prompts of ${work["prompt-tokens"]} tokens and ${work["answer-tokens"]} answered tokens`,
    "processor time: of the engine's thread in the same calls; control: in the same steps, by wall clock, as long as the median call",
    ...["healthy", "stopped"].flatMap((state) => slowestLines(state, measured[state].slowest)),
    `well: ${counts(healthy)}, each prompt computed and saved, then restored (${tokensRestored} tokens in all); stopped: ${counts(stopped)}`,
  ];
}
