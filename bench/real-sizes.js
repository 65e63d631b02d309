// Owns the figures of prompts of real models' KV: how much of them is saved on the first visit, restored, and how soon.
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/demo/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./real_sizes.py", import.meta.url));
const TIMEOUT_MS = 900_000;
const GIB = 2 ** 30;
const KIB = 2 ** 10;
/** KV as published, next to no compute. */
const THIN = { kind: "llama", hidden: 64, intermediate: 128, vocab: 512, "max-position": 32_768 };
const MODELS = {
  "Llama-3.1-8B": { layers: 32, heads: 8, "kv-heads": 8, "head-dim": 128, seed: 1 },
  "Llama-3.1-70B": { layers: 80, heads: 8, "kv-heads": 8, "head-dim": 128, seed: 1 },
};
const TOKEN_BYTES = { "Llama-3.1-8B": 128 * KIB, "Llama-3.1-70B": 320 * KIB };
const LONG = { prompts: 1, tokens: 16_387 };
const EIGHT = { prompts: 8, tokens: 2051 };
const CASES = [
  { name: "Llama-3.1-8B", chunk: 2048, ...LONG },
  { name: "Llama-3.1-8B", chunk: 8192, ...LONG },
  { name: "Llama-3.1-8B", chunk: 2048, ...EIGHT },
  { name: "Llama-3.1-70B", chunk: 2048, ...LONG },
  { name: "Llama-3.1-70B", chunk: 8192, ...LONG },
];
const QUICK = [{ name: "Llama-3.1-8B", chunk: 2048, prompts: 1, tokens: 2051 }];
const WHOLE = { on: "ratio", least: 0.99 };
const OVER_OWN_HIT = "an answer from the engine's own cache";

export const title = "Prompts with the KV of published models (thin compute, over the loopback)";

export async function run({ isQuick, say }) {
  const figures = [];
  const cells = [];
  for (const one of isQuick ? QUICK : CASES) {
    const { name, chunk, prompts, tokens } = one;
    say(`${name}: ${prompts} x ${tokens} tokens, chunks of ${chunk}`);
    const measured = await measure(one);
    const label = `${name}, ${prompts} x ${Math.round(tokens / 1024)}k tokens, chunk ${chunk}`;
    cells.push({ ...one, ...measured });
    figures.push(...figuresOf(label, measured, prompts * tokens * TOKEN_BYTES[name]));
  }
  const lost = cells.filter(({ counters }) => Object.keys(counters).length > 0);
  const differ = cells.filter(({ same }) => !same).length;
  const notes = [
    "saved: of the full blocks, once nothing more was sent; restored: of the tokens in full blocks, after the engine's own cache was emptied",
    `first tokens that differ from the cold ones: ${differ} of ${cells.length} cases (raw records)`,
    ...lost.map(
      (cell) => `lost in ${cell.name}, chunk ${cell.chunk}: ${JSON.stringify(cell.counters)}`,
    ),
  ];
  return { figures, notes, cells };
}

async function measure({ name, chunk, prompts, tokens }) {
  const stand = new Stand();
  try {
    const { cores } = thisMachine();
    const model = await stand.makeModel({ ...THIN, ...MODELS[name], dtype: "bfloat16" });
    const bytes = prompts * tokens * TOKEN_BYTES[name];
    const kvBytes = Math.ceil(bytes * 1.1) + GIB / 4;
    const address = await stand.vault(Math.ceil(bytes * 1.1) + GIB / 4);
    const options = { arenaBytes: GIB, int8: false };
    const { socket } = await stand.sidecar(address, options);
    const flags = { model, socket, "kv-bytes": kvBytes, chunk, prompts, tokens };
    const args = Object.entries(flags).flatMap(([flag, value]) => [`--${flag}`, String(value)]);
    // A process of its own: an engine in the caller's process takes no steps for saves once its requests have ended.
    const env = { ...engineEnvironment(cores), VLLM_ENABLE_V1_MULTIPROCESSING: "1" };
    return await stand.python([SCRIPT, ...args], { env, timeoutMs: TIMEOUT_MS });
  } finally {
    await stand.close();
  }
}

function figuresOf(label, measured, bytes) {
  const { blocks, saved, savedSeconds, cold, own, restored, cached } = measured;
  const ms = (seconds) => seconds * 1e3;
  return [
    describe({
      name: `${label}: saved`,
      unit: "blocks",
      value: saved,
      ratio: saved / blocks,
      of: "all",
      floor: WHOLE,
      note: `the last one ${savedSeconds.toFixed(1)} s after the answer, ${(bytes / 1e9).toFixed(1)} GB in all`,
    }),
    describe({
      name: `${label}: restored`,
      unit: "tokens",
      value: cached[2],
      ratio: cached[2] / cached[1],
      of: "own cache's",
      floor: WHOLE,
    }),
    describe({ name: `${label}: first token, computed`, unit: "ms", value: ms(cold) }),
    describe({
      name: `${label}: first token, restored`,
      unit: "ms",
      value: ms(restored),
      ratio: restored / own,
      of: OVER_OWN_HIT,
    }),
  ];
}
