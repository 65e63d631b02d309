// Owns the figures of prompts with real models' KV: share saved at the first visit, share restored, time to the first token.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/extras/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe, figure } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";
import { plainSeconds } from "./lib/tcp.js";

const SCRIPT = fileURLToPath(new URL("./real_sizes.py", import.meta.url));
const TIMEOUT_MS = 900_000;
const GIB = 2 ** 30;
const KIB = 2 ** 10;
/** KV bytes of a token over all layers, by name in python-shim/lab/geometries.py; states count as a few more tokens. */
const TOKEN_BYTES = {
  "llama-3.1-8b": 128 * KIB,
  "llama-3.1-70b": 320 * KIB,
  "qwen3-30b-a3b-dense": 96 * KIB,
  "gpt-oss-120b-as-gemma3": 72 * KIB,
  "deepseek-v3": 69 * KIB,
  "qwen3.5-9b": 160 * KIB,
  "gemma-3-27b": 496 * KIB,
};
/** Factor for an arena that holds the whole restore beside saves, as src/arena/sizing.ts divides it. */
const WHOLE_ARENA = 4 / 3;
const SHORT = { prompts: 1, tokens: 2051, chunk: 1024 };
const CASES = [
  { name: "llama-3.1-8b", prompts: 1, tokens: 8195, chunk: 2048 },
  { name: "llama-3.1-8b", prompts: 1, tokens: 16_387, chunk: 8192, beside: true },
  { name: "llama-3.1-8b", prompts: 8, tokens: 2051, chunk: 2048 },
  { name: "llama-3.1-70b", prompts: 1, tokens: 8195, chunk: 8192, arenaBytes: GIB },
  ...Object.keys(TOKEN_BYTES)
    .filter((name) => name !== "llama-3.1-8b")
    .map((name) => ({ name, ...SHORT })),
];
/** Run only by name: the largest needs 4.3 GB of KV and about 17 GB of memory. */
const LONG = {
  "llama-3.1-8b-16k": {
    name: "llama-3.1-8b",
    prompts: 1,
    tokens: 16_387,
    chunk: 8192,
    beside: true,
  },
  "llama-3.1-8b-32k": {
    name: "llama-3.1-8b",
    prompts: 1,
    tokens: 32_643,
    chunk: 8192,
    beside: true,
  },
  "llama-3.1-8b-16k-1gib": {
    name: "llama-3.1-8b",
    prompts: 1,
    tokens: 16_387,
    chunk: 8192,
    beside: true,
    arenaBytes: GIB,
  },
  "llama-3.1-8b-32k-1gib": {
    name: "llama-3.1-8b",
    prompts: 1,
    tokens: 32_643,
    chunk: 8192,
    beside: true,
    arenaBytes: GIB,
  },
  "llama-3.1-8b-small-arena": {
    name: "llama-3.1-8b",
    prompts: 1,
    tokens: 4099,
    chunk: 2048,
    arenaBytes: GIB / 4,
  },
  "llama-3.1-70b-8k": {
    name: "llama-3.1-70b",
    prompts: 1,
    tokens: 8195,
    chunk: 8192,
    arenaBytes: GIB,
  },
};
const QUICK = [{ name: "llama-3.1-8b", ...SHORT }];
const WATCH_MS = 50;
const LONG_TOKENS = 16_384;
const WHOLE = { on: "ratio", least: 0.99 };
const OVER_OWN_HIT = "an answer from the engine's own cache";

export const title = "Prompts with the KV of published models (thin compute, over the loopback)";

/** Names that `--geometry` accepts. */
export const geometries = [...Object.keys(TOKEN_BYTES), ...Object.keys(LONG)];

export async function run({ isQuick, geometry, say }) {
  const figures = [];
  const cells = [];
  for (const one of casesOf(geometry, isQuick)) {
    const { name, chunk, prompts, tokens, arenaBytes } = one;
    if (name === "deepseek-v3" && !hasAmx()) {
      say(`${name}: vLLM caches MLA on a CPU only with AMX`);
      continue;
    }
    say(`${name}: ${prompts} x ${tokens} tokens, chunks of ${chunk}`);
    const measured = await measure(one);
    const where = arenaBytes === undefined ? "" : `, arena of ${arenaBytes / GIB} GiB`;
    const label = `${name}, ${prompts} x ${Math.round(tokens / 1024)}k tokens, chunk ${chunk}${where}`;
    cells.push({ ...one, ...measured });
    figures.push(...figuresOf(label, measured, one));
  }
  const lost = cells.filter(({ counters }) => Object.keys(counters).length > 0);
  const differ = cells.filter(({ same }) => !same).length;
  const notes = [
    "saved: of the full blocks, on the first visit, where all layers are of full attention; vLLM keeps few of the blocks that a window has passed, and states as it hands them over",
    "restored: of the tokens that an answer from the engine's own cache took from it, or of those that a smaller arena holds, for an engine that loads no windows",
    `first tokens that differ from the cold ones: ${differ} of ${cells.length} cases (raw records)`,
    ...lost.map(
      (cell) => `lost in ${cell.name}, chunk ${cell.chunk}: ${JSON.stringify(cell.counters)}`,
    ),
  ];
  return { figures, notes, cells };
}

function casesOf(geometry, isQuick) {
  if (geometry !== undefined) return [LONG[geometry] ?? { name: geometry, ...SHORT }];
  return isQuick ? QUICK : CASES;
}

function hasAmx() {
  return /\bamx_tile\b/.test(readFileSync("/proc/cpuinfo", "latin1"));
}

async function measure({ name, chunk, prompts, tokens, arenaBytes: given, beside = false }) {
  const stand = new Stand();
  let watch;
  let peakBytes = 0;
  try {
    const { cores } = thisMachine();
    const model = await stand.makeModel({ geometry: name });
    const bytes = prompts * tokens * TOKEN_BYTES[name];
    const kvBytes = Math.ceil(bytes * 1.1) + GIB / 4;
    const address = await stand.vault(kvBytes, null, "cold");
    const arenaBytes = given ?? Math.ceil(kvBytes * WHOLE_ARENA);
    const options = { arenaBytes, codec: "raw", ssmCold: address, isWatched: true };
    const { socket } = await stand.sidecar(address, options);
    watch = setInterval(() => {
      peakBytes = Math.max(peakBytes, stand.memoryBytes().sidecar);
    }, WATCH_MS);
    // Not fixed for models with states, because vLLM makes attention blocks as large as states.
    const fixedBlocks = name.startsWith("qwen3.5") ? 0 : 1;
    const flags = { model, socket, "kv-bytes": kvBytes, chunk, prompts, tokens };
    const args = Object.entries({ ...flags, "fixed-blocks": fixedBlocks, beside: Number(beside) });
    // Removed, because vLLM prefers this variable over `kv_cache_memory_bytes`.
    const { VLLM_CPU_KVCACHE_SPACE: _, ...env } = engineEnvironment(cores);
    const measured = await stand.python(
      [SCRIPT, ...args.flatMap(([of, at]) => [`--${of}`, `${at}`])],
      { env, timeoutMs: TIMEOUT_MS },
    );
    const wireS = beside ? await plainSeconds(stand, bytes) : null;
    return { ...measured, peakBytes, wireS, pauseMs: stand.pauseMs(measured.restoring) };
  } finally {
    clearInterval(watch);
    await stand.close();
  }
}

/** Compares a short prompt's restore beside a long one with the same alone. */
function besideOf(label, rounds) {
  if (rounds.length === 0) return [];
  const [alone, beside] = [0, 1].map((at) => rounds.map((round) => round[at] * 1e3));
  return [
    figure(`${label}: first token of a 1k prompt restored beside it`, "ms", beside, {
      beside: alone,
      of: "alone",
      floor: { on: "ratio", most: 1.1 },
    }),
  ];
}

function figuresOf(label, measured, { name, prompts, tokens, arenaBytes }) {
  const { blocks, plain, saved, savedSeconds, cold, own, restored, cached, longest } = measured;
  const { peakBytes, pauseMs, wireS, arenaBytes: arenaHas } = measured;
  const bytes = prompts * tokens * TOKEN_BYTES[name];
  const ms = (seconds) => seconds * 1e3;
  const block = tokens / (blocks / prompts);
  const most = Math.min(cached[1], longest - (longest % block));
  return [
    describe({
      name: `${label}: saved`,
      unit: "blocks",
      value: saved,
      ...(plain ? { ratio: saved / blocks, of: "all", floor: WHOLE } : {}),
      note: `the last one ${savedSeconds.toFixed(1)} s after the answer, ${(bytes / 1e9).toFixed(1)} GB in all`,
    }),
    describe({
      name: `${label}: restored`,
      unit: "tokens",
      value: cached[2],
      ratio: cached[2] / most,
      of: longest < tokens ? "what the arena holds" : "own cache's",
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
    ...(arenaBytes === undefined
      ? []
      : [
          describe({
            name: `${label}: first token of a prompt larger than the arena`,
            unit: "ms",
            value: ms(restored),
            ratio: restored / cold,
            of: "computed",
            floor: { on: "ratio", most: 0.1 },
          }),
        ]),
    ...(wireS === null
      ? []
      : [
          describe({
            name: `${label}: plain TCP for its bytes, and an own hit`,
            unit: "ms",
            value: ms(wireS + own),
            ratio: restored / (wireS + own),
            of: "restored, over it",
            floor: { on: "ratio", most: 1.05 },
          }),
        ]),
    describe({
      name: `${label}: the sidecar's private memory beside its arena, most`,
      unit: "MB",
      value: peakBytes / 1e6,
      ratio: peakBytes / arenaHas,
      of: "the arena",
      // No floor for a small arena, because the process itself exceeds that share.
      ...(tokens >= LONG_TOKENS ? { floor: { on: "ratio", most: 0.1 } } : {}),
    }),
    describe({
      name: `${label}: longest pause of the sidecar's event loop while it restores`,
      unit: "ms",
      value: pauseMs,
      floor: { on: "value", most: 20 },
    }),
    ...besideOf(label, measured.beside),
  ];
}
