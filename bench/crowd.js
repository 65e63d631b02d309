// Owns the figures of 256 simultaneous restores, and of a short restore beside a long one, by an engine that computes nothing.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/extras/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe, figure, quantile } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./crowd.py", import.meta.url));
const HERE = fileURLToPath(new URL(".", import.meta.url));
const TIMEOUT_MS = 280_000;
const GIB = 2 ** 30;
const TOKEN_BYTES = 128 * 2 ** 10;
const MANY = { prompts: 256, tokens: 2048, kept: 24, longest: 4096 };
const BESIDE = { prompts: 6, tokens: 1024, longest: 32_768 };
const QUICK_MANY = { prompts: 256, tokens: 2048, kept: 8, longest: 4096 };
const QUICK_BESIDE = { prompts: 2, tokens: 1024, longest: 8192 };
const STEP_P99 = { on: "value", most: 1 };
const UNHINDERED = { on: "ratio", most: 1.3 };
const WATCH_MS = 100;

const PARTS = { many: "256 restores at once", beside: "A short restore beside a long one" };

export const titleOf = (part) => `${PARTS[part]} (Llama-3.1-8B's KV, nothing computed)`;

export async function run({ isQuick, part }) {
  return part === "many"
    ? many(isQuick ? QUICK_MANY : MANY)
    : beside(isQuick ? QUICK_BESIDE : BESIDE);
}

async function many(work) {
  const measured = await measure(work, { kvBytes: 2 * GIB, arenaBytes: 2 * GIB, held: work.kept });
  const { again, asked, seconds, peakBytes } = measured;
  const { steps, waits, cpu, waitsCpu, arrivals } = measured;
  const name = `${work.prompts} x ${work.tokens} tokens`;
  const calls = (what, values, floor) => [
    describe({
      name: `${name}: ${what}, p99`,
      unit: "ms",
      value: ms(quantile(values, 0.99)),
      ...floor,
    }),
    describe({ name: `${name}: ${what}, max`, unit: "ms", value: ms(Math.max(...values)) }),
  ];
  const figures = [
    ...calls("our calls in a step that computes", steps, { floor: STEP_P99 }),
    ...calls("the same, processor time", cpu, { floor: STEP_P99 }),
    ...calls("in a step that computes nothing, its wait for word included", waits),
    ...calls("the same, processor time", waitsCpu, { floor: STEP_P99 }),
    ...calls("as a request arrives", arrivals),
    describe({
      name: `${name}: restored`,
      unit: "tokens",
      value: again,
      ratio: again / asked,
      of: "all asked; the rest came from the engine's own cache or was computed",
    }),
    describe({ name: `${name}: until the last answer`, unit: "s", value: seconds }),
    describe({
      name: `${name}: the sidecar's private memory, peak`,
      unit: "MB",
      value: peakBytes / 1e6,
    }),
  ];
  const notes = [
    ...notesOf(measured),
    `${steps.length} steps that computed, ${waits.length} that did not`,
  ];
  return { figures, notes };
}

async function beside(work) {
  const { tokens, longest, prompts } = work;
  const bytes = longest * TOKEN_BYTES;
  const held = 2 * prompts + (2 * longest) / tokens;
  const measured = await measure(work, { kvBytes: bytes * 1.25, arenaBytes: bytes * 1.5, held });
  const { alone, together } = measured;
  const name = `${tokens} tokens, restored`;
  const figures = [
    figure(`${name} alone: first token`, "ms", alone.map(ms)),
    figure(`${name} beside ${longest}: first token`, "ms", together.map(ms), {
      beside: alone.map(ms),
      of: "alone",
      floor: UNHINDERED,
    }),
  ];
  return { figures, notes: notesOf(measured) };
}

const ms = (seconds) => seconds * 1e3;

function notesOf({ errors, dropped, restored, asked }) {
  return [
    `exceptions: ${JSON.stringify(errors)}; dropped: ${JSON.stringify(dropped)}; restored ${restored} of ${asked} tokens`,
  ];
}

/** `held`: prompts of that length that the vault holds. */
async function measure(work, { kvBytes, arenaBytes, held }) {
  const stand = new Stand();
  let watch;
  try {
    const { cores } = thisMachine();
    const model = await stand.makeModel({ geometry: "llama-3.1-8b" });
    // Records take a little over half of bf16, because they are INT8.
    const address = await stand.vault(Math.ceil(held * work.tokens * TOKEN_BYTES * 0.6));
    const { socket, pid } = await stand.sidecar(address, { arenaBytes, codec: "int8-mean-had" });
    const memory = { peakBytes: 0 };
    watch = setInterval(() => {
      const [, kib] = /^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "latin1"));
      memory.peakBytes = Math.max(memory.peakBytes, Number(kib) * 1024);
    }, WATCH_MS);
    const flags = { model, socket, "kv-bytes": kvBytes, ...work };
    const { VLLM_CPU_KVCACHE_SPACE: _, ...env } = engineEnvironment(cores);
    const path = `${HERE}:${fileURLToPath(new URL("../python-shim", import.meta.url))}`;
    const args = Object.entries(flags).flatMap(([of, at]) => [`--${of}`, `${at}`]);
    const measured = await stand.python([SCRIPT, ...args], {
      env: { ...env, PYTHONPATH: path },
      timeoutMs: TIMEOUT_MS,
    });
    return { ...measured, ...memory };
  } finally {
    clearInterval(watch);
    await stand.close();
  }
}
