// Owns the figures of many requests of few prompts after a restart: tierKV beside vLLM alone and vLLM's own offloading.
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe, quantile } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./one_prefix.py", import.meta.url));
const HERE = fileURLToPath(new URL(".", import.meta.url));
const TIMEOUT_MS = 900_000;
const GIB = 2 ** 30;
/** Llama-3.1-8B's KV of a token, all layers. */
const TOKEN_BYTES = 128 * 2 ** 10;
/** Compute time of a token in us, as for a 70B model on one GPU. */
const TOKEN_US = 200;
const WORK = { tokens: 1024, counts: [8, 64, 256] };
const QUICK = { tokens: 512, counts: [8] };
/** Prefixes of one count: one, eight, and one for several answers. */
const PREFIXES = { one: 1, eight: 8, n: 1 };
const SHAPES = { one: "one prefix", eight: "8 prefixes", n: "n = 8" };
const [ALONE, OFFLOADING, OURS] = ["vLLM alone", "vLLM's OffloadingConnector", "tierKV"];
const BLOCKS = { on: "ratio", most: 1.1 };
const STEPS = { on: "ratio", most: 1.05 };
const NO_LATER = { on: "ratio", most: 1 };

export const title =
  "Many requests of one prefix that lies outside the engine (Llama-3.1-8B's KV, nothing computed)";

export async function run({ isQuick, say }) {
  const work = isQuick ? QUICK : WORK;
  const held = work.counts.length * 10 * work.tokens * TOKEN_BYTES;
  const kvBytes = 3 * GIB;
  const cells = {};
  for (const [name, options] of [
    [ALONE, {}],
    [OFFLOADING, { offloadBytes: Math.ceil(1.5 * held) }],
    [OURS, { vaultBytes: Math.ceil(held) }],
  ]) {
    say(name);
    cells[name] = await measure({ ...work, kvBytes, ...options });
  }
  const figures = cells[OURS].flatMap((ours, at) =>
    figuresOf(ours, cells[ALONE][at], cells[OFFLOADING][at]),
  );
  return {
    figures,
    notes: [
      `prefixes of ${work.tokens} tokens, each request with 16 tokens of its own; a token computes for ${TOKEN_US} us, asleep; its blocks lie in the vault, or in the offloading's host memory, and the engine's own cache is empty`,
      "blocks taken from the engine's pool, and steps that schedule tokens; first token: from adding all requests to each answer's first token",
    ],
    cells,
  };
}

function figuresOf(ours, alone, offloading) {
  const { count, shape } = ours;
  const name = `${count} requests, ${SHAPES[shape]}`;
  const counted = (what, of, floor) =>
    describe({
      name: `${name}: ${of}`,
      unit: "",
      value: ours[what],
      ratio: ours[what] / alone[what],
      of: ALONE,
      floor,
    });
  const loads = describe({
    name: `${name}: loads`,
    unit: "",
    value: ours.loads,
    ratio: ours.loads / PREFIXES[shape],
    of: `prefixes; ${OFFLOADING}: ${offloading.loads}`,
    floor: NO_LATER,
  });
  const late = [0.5, 0.99].flatMap((share) =>
    [
      [ALONE, alone],
      [OFFLOADING, offloading],
    ].map(([who, other]) => {
      const [value, base] = [ours, other].map(({ first }) => quantile(first, share) * 1e3);
      return describe({
        name: `${name}: first token, p${share * 100}`,
        unit: "ms",
        value,
        ratio: value / base,
        of: who,
        floor: NO_LATER,
      });
    }),
  );
  return [
    counted("blocks", "blocks taken", BLOCKS),
    loads,
    counted("steps", "steps with tokens", STEPS),
    ...late,
  ];
}

async function measure({ tokens, counts, kvBytes, offloadBytes, vaultBytes }) {
  const stand = new Stand();
  try {
    const { cores } = thisMachine();
    const model = await stand.makeModel({ geometry: "llama-3.1-8b" });
    const flags = {
      model,
      tokens,
      counts: JSON.stringify(counts),
      "kv-bytes": kvBytes,
      "token-us": TOKEN_US,
      ...(offloadBytes === undefined ? {} : { "offload-bytes": offloadBytes }),
    };
    if (vaultBytes !== undefined) {
      const address = await stand.vault(vaultBytes);
      const options = { arenaBytes: 1.5 * GIB, codec: "int8-mean-had" };
      flags.socket = (await stand.sidecar(address, options)).socket;
    }
    // Removed, because vLLM prefers this variable over `kv_cache_memory_bytes`.
    const { VLLM_CPU_KVCACHE_SPACE: _, ...env } = engineEnvironment(cores);
    const args = Object.entries(flags).flatMap(([of, at]) => [`--${of}`, `${at}`]);
    const path = `${HERE}:${fileURLToPath(new URL("../python-shim", import.meta.url))}`;
    const measured = await stand.python([SCRIPT, ...args], {
      env: { ...env, PYTHONPATH: path },
      timeoutMs: TIMEOUT_MS,
    });
    return measured.cells;
  } finally {
    await stand.close();
  }
}
