// Owns the figures of prompts larger than the arena: all comes back, at the link's speed, in bounded memory and blocks.
import { availableMemory } from "node:process";
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/extras/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe, figure, quantile } from "./lib/figures.js";
import { Network } from "./lib/network.js";
import { Stand } from "./lib/stand.js";
import { plainSeconds } from "./lib/tcp.js";

const SCRIPT = fileURLToPath(new URL("./windows.py", import.meta.url));
const TIMEOUT_MS = 1_800_000;
const GIB = 2 ** 30;
/** Llama-3.1-8B's KV of a token, all layers. */
const TOKEN_BYTES = 128 * 2 ** 10;
/** Compute time of a prompt's first token in us, as for a 70B model on one GPU. */
const TOKEN_US = 200;
const WATCH_MS = 50;
const WAITING = 64;
const SHORT_TOKENS = 256;
/** The vault has room for the short prompts that are saved first, so that they evict nothing of the long one. */
const SHORT_BYTES = WAITING * SHORT_TOKENS * TOKEN_BYTES;
/** What 24 GB hold: the engine's pages, the vault and the arena have 17.3 GB. */
const CASE = { tokens: 49_155, arenaBytes: GIB, rounds: 3 };
/** Run only by name. */
const LONG = {
  "16k": { ...CASE, tokens: 16_387, rounds: 5 },
  "16k-fits": { tokens: 16_387, arenaBytes: 4 * GIB, rounds: 5 },
  "32k": { ...CASE, tokens: 32_771 },
  "64k": { ...CASE, tokens: 65_539 },
  "100k": { ...CASE, tokens: 100_003 },
  "slow-link": { ...CASE, tokens: 16_387, mbit: 5000 },
};
/** Memory besides pages, records and arena: two processes of Node and one of vLLM. */
const BESIDE_BYTES = 3 * GIB;
const QUICK = { tokens: 4099, arenaBytes: GIB / 4, rounds: 2 };

export const title =
  "Prompts larger than the arena (Llama-3.1-8B's KV, nothing computed, over the loopback)";

/** Names that `--geometry` accepts. */
export const geometries = Object.keys(LONG);

export async function run({ isQuick, geometry, say }) {
  const work = LONG[geometry] ?? (isQuick ? QUICK : CASE);
  const { tokens, arenaBytes, mbit } = work;
  const link = mbit === undefined ? "" : `, ${mbit / 1000} Gb/s`;
  const label = `${Math.round(tokens / 1024)}k tokens, arena of ${arenaBytes / GIB} GiB${link}`;
  say(label);
  const measured = await measure(work);
  return {
    figures: figuresOf(label, work, measured),
    notes: [
      `a token computes for ${TOKEN_US} us and more behind others, asleep; pages hold noise, and each restored block is compared by a sum over it`,
      `${WAITING} short prompts arrive after a long one and are computed; a computed prompt holds half of its blocks on average`,
    ],
    cells: [measured],
  };
}

/** Throws where the machine's free memory does not hold all of it: it would swap, or end another process. */
function checkMemory(bytes) {
  const free = availableMemory();
  if (bytes <= free) return;
  const [need, has] = [bytes, free].map((each) => (each / 1e9).toFixed(1));
  throw new Error(`this case needs ${need} GB of memory, ${has} GB are free; choose a shorter one`);
}

async function measure({ tokens, arenaBytes, rounds, mbit }) {
  const bytes = tokens * TOKEN_BYTES;
  const kvBytes = Math.ceil(bytes * 1.05) + GIB / 4;
  checkMemory(2 * kvBytes + SHORT_BYTES + arenaBytes + BESIDE_BYTES);
  const stand = new Stand();
  let watch;
  let network = null;
  let peakBytes = 0;
  try {
    if (mbit !== undefined) {
      network = new Network();
      network.pace(mbit);
    }
    const model = await stand.makeModel({ geometry: "llama-3.1-8b" });
    const address = await stand.vault(kvBytes + SHORT_BYTES, network);
    const restore = "[restore]\nwait_ms = 30000\nstall_ms = 5000\n";
    const options = { arenaBytes, codec: "raw", isWatched: true, restore };
    const { socket } = await stand.sidecar(address, options);
    watch = setInterval(() => {
      peakBytes = Math.max(peakBytes, stand.memoryBytes().sidecar);
    }, WATCH_MS);
    const flags = {
      model,
      socket,
      tokens,
      rounds,
      "kv-bytes": kvBytes,
      waiting: WAITING,
      short: SHORT_TOKENS,
      "token-us": TOKEN_US,
    };
    const args = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, `${value}`]);
    const { VLLM_CPU_KVCACHE_SPACE: _, ...env } = engineEnvironment(thisMachine().cores);
    const measured = await stand.python([SCRIPT, ...args], { env, timeoutMs: TIMEOUT_MS });
    const wireS = mbit === undefined ? await plainSeconds(stand, bytes) : (bytes * 8) / mbit / 1e6;
    return { ...measured, peakBytes, wireS };
  } finally {
    clearInterval(watch);
    await stand.close();
    network?.close();
  }
}

function figuresOf(label, { arenaBytes, mbit }, measured) {
  const { cold, own, ownCached, rounds, alone, beside, peakBytes, wireS, windowed } = measured;
  const restored = rounds.map(({ seconds }) => seconds * 1e3);
  const least = Math.min(...rounds.map(({ cached }) => cached));
  const wrong = rounds.reduce((sum, round) => sum + round.wrong, 0);
  const p50 = ({ short }) => quantile(short, 0.5) * 1e3;
  return [
    describe({
      name: `${label}: restored`,
      unit: "tokens",
      value: least,
      ratio: least / ownCached,
      of: "own cache's",
      floor: { on: "ratio", least: 1 },
      note: `${windowed} restores in windows`,
    }),
    describe({
      name: `${label}: blocks that differ`,
      unit: "blocks",
      value: wrong,
      floor: { on: "value", most: 0 },
    }),
    figure(`${label}: first token, restored`, "ms", restored, {
      beside: restored.map(() => cold * 1e3),
      of: "computed",
      floor: { on: "ratio", most: mbit === undefined ? 0.5 : 1 },
    }),
    figure(`${label}: first token, over the wire and an own hit`, "ms", restored, {
      beside: restored.map(() => (wireS + own) * 1e3),
      of:
        mbit === undefined
          ? "plain TCP for its bytes, and an own hit"
          : "the link's rate for its bytes, and an own hit",
      floor: { on: "ratio", most: mbit === undefined ? 1.05 : 1.15 },
    }),
    describe({
      name: `${label}: the sidecar's private memory beside its arena, most`,
      unit: "MB",
      value: peakBytes / 1e6,
      ratio: peakBytes / arenaBytes,
      of: "the arena",
      floor: { on: "ratio", most: 0.1 },
    }),
    describe({
      name: `${label}: first token of ${WAITING} short prompts behind it, median`,
      unit: "ms",
      value: p50(beside),
      ratio: p50(beside) / p50(alone),
      of: "without it",
      floor: { on: "ratio", most: 1.1 },
    }),
    describe({
      name: `${label}: engine blocks held by the load`,
      unit: "block-seconds",
      value: beside.heldBlockSeconds,
      ratio: beside.heldBlockSeconds / measured.computedBlockSeconds,
      of: "computing it",
      floor: { on: "ratio", most: 1 },
    }),
  ];
}
