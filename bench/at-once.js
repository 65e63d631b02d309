// Owns the figures of 256 simultaneous requests of growing conversations over half an hour: hits, throughput and memory.
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/extras/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe, figure, median } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./at_once.py", import.meta.url));
const HERE = fileURLToPath(new URL(".", import.meta.url));
const GIB = 2 ** 30;
/** Llama-3.1-8B's KV of a token, all layers. */
const TOKEN_BYTES = 128 * 2 ** 10;
/** Compute time of a token in us, as for a 70B model on one GPU: 320 KiB of KV in half a millisecond. */
const TOKEN_US = 200;
const WORK = { conversations: 64, clients: 4, turns: 10, asked: 32, answered: 32, minutes: 30 };
const QUICK = { ...WORK, turns: 3, minutes: 1 };
const ENGINE_SHARE = 0.1;
const ROOM = 1.2;
/** Size of INT8 records relative to bf16, headers included. */
const INT8_SHARE = 0.53;
const ARENA_BYTES = 1.5 * GIB;
const QUICK_ARENA_BYTES = 0.5 * GIB;
/** Time beside the passes: the engine's start, and the pass that is open when the time is over. */
const SLACK_MS = 900_000;
const WATCH_MS = 5000;
const [IDEAL, ALONE, OURS] = ["a cache of everything", "vLLM alone", "tierKV, INT8"];
const FLAT = { on: "value", most: 5 };

export const title =
  "256 requests at once, of 64 conversations, on an engine with a cache of a tenth of them (Llama-3.1-8B's KV, nothing computed)";

export async function run({ isQuick, say }) {
  const work = isQuick ? QUICK : WORK;
  const { conversations, turns, asked, answered } = work;
  const workingSet = conversations * turns * (asked + answered) * TOKEN_BYTES;
  const kvBytes = Math.ceil(workingSet * ENGINE_SHARE);
  const vaultBytes = Math.ceil(workingSet * ROOM * INT8_SHARE);
  const arenaBytes = isQuick ? QUICK_ARENA_BYTES : ARENA_BYTES;
  const cases = [
    { name: IDEAL, kvBytes: Math.ceil(workingSet * ROOM), seconds: 0 },
    { name: ALONE, kvBytes, seconds: 0 },
    { name: OURS, kvBytes, vaultBytes, arenaBytes, seconds: work.minutes * 60 },
  ];
  const cells = [];
  for (const one of cases) {
    say(one.name);
    cells.push({ name: one.name, ...(await measure(one, work)) });
    say(`${one.name}: ${JSON.stringify(cells.at(-1).passes.map(sumOf))}`);
  }
  const [ideal, alone, ours] = cells;
  const gib = (bytes) => (bytes / GIB).toFixed(1);
  return {
    figures: [...hitsOf(cells, ideal), ...outputOf(ours, alone, work), ...memoryOf(ours.samples)],
    notes: [
      `${gib(workingSet)} GiB of KV, ${gib(kvBytes)} GiB in the engine, ${gib(vaultBytes)} GiB in the vault; ${turns} turns of ${asked} + ${answered} tokens, asked by ${work.clients} clients each; then new conversations come`,
      `a token computes for ${TOKEN_US} us, asleep: a GPU would leave the processors to sidecar and vault, too`,
      `first tokens of a turn and output are of whole rounds; ${ours.passes.length} passes in ${work.minutes} minutes`,
      `dropped: ${JSON.stringify(ours.dropped)}`,
    ],
    cells: cells.map(({ samples: _samples, ...cell }) => cell),
  };
}

const total = (rounds, of) => rounds.reduce((sum, round) => sum + round[of], 0);

function sumOf(rounds) {
  const hits = total(rounds, "cached") / total(rounds, "asked");
  return { seconds: Math.round(total(rounds, "seconds")), hits: Number(hits.toFixed(3)) };
}

function hitsOf(cells, ideal) {
  const share = (rounds) => (100 * total(rounds, "cached")) / total(rounds, "asked");
  return cells.map(({ name, passes }) =>
    figure(`${name}: prompt tokens not computed`, "%", passes.map(share), {
      beside: passes.map(() => share(ideal.passes[0])),
      of: IDEAL,
      ...(name === OURS ? { floor: { on: "ratio", least: 0.9 } } : {}),
    }),
  );
}

/** Returns the output of whole passes, and of each turn over the same turn without tierKV. */
function outputOf(ours, alone, { conversations, clients, answered }) {
  const tokens = conversations * clients * answered;
  const rate = (rounds) => (tokens * rounds.length) / total(rounds, "seconds");
  const beside = (passes) => passes.map(() => rate(alone.passes[0]));
  const turns = ours.passes.flatMap((rounds) =>
    rounds.map(({ seconds }, at) => ({ at, ratio: alone.passes[0][at].seconds / seconds })),
  );
  const slowest = turns.reduce((least, each) => (each.ratio < least.ratio ? each : least));
  return [
    figure(`${ALONE}: output`, "tokens/s", alone.passes.map(rate)),
    figure(`${OURS}: output`, "tokens/s", ours.passes.map(rate), {
      beside: beside(ours.passes),
      of: ALONE,
      floor: { on: "ratio", least: 1 },
    }),
    describe({
      name: `${OURS}: the slowest of ${turns.length} turns (turn ${slowest.at + 1}), output`,
      unit: "",
      value: slowest.ratio,
      ratio: slowest.ratio,
      of: `the same turn of ${ALONE}`,
      floor: { on: "ratio", least: 1 },
    }),
  ];
}

/** Returns the growth of the last third of the readings over the third before, because by then the vault is full. */
function memoryOf(samples) {
  const third = Math.max(1, Math.floor(samples.length / 3));
  return ["vault", "sidecar", "python"].flatMap((name) => {
    const bytes = samples.map((sample) => sample[name]).filter((each) => each !== undefined);
    const [before, last] = [bytes.slice(-2 * third, -third), bytes.slice(-third)].map(median);
    const who = name === "python" ? "engine" : name;
    return [
      describe({
        name: `${who}: private memory, most`,
        unit: "MB",
        value: Math.max(...bytes) / 1e6,
      }),
      describe({
        name: `${who}: growth of the last third`,
        unit: "%",
        value: (last / before - 1) * 100,
        floor: FLAT,
      }),
    ];
  });
}

async function measure({ kvBytes, vaultBytes, arenaBytes, seconds }, work) {
  const stand = new Stand();
  const samples = [];
  let watch;
  try {
    const { cores } = thisMachine();
    const model = await stand.makeModel({ geometry: "llama-3.1-8b" });
    const flags = {
      model,
      "kv-bytes": kvBytes,
      conversations: work.conversations,
      clients: work.clients,
      turns: work.turns,
      "asked-tokens": work.asked,
      "answer-tokens": work.answered,
      "token-us": TOKEN_US,
      seconds,
    };
    if (vaultBytes !== undefined) {
      const address = await stand.vault(vaultBytes);
      const options = { arenaBytes, codec: "int8-mean-had", restore: "" };
      flags.socket = (await stand.sidecar(address, options)).socket;
    }
    watch = setInterval(() => samples.push(stand.memoryBytes()), WATCH_MS);
    // Removed, because vLLM prefers this variable over `kv_cache_memory_bytes`.
    const { VLLM_CPU_KVCACHE_SPACE: _, ...env } = engineEnvironment(cores);
    const args = Object.entries(flags).flatMap(([of, at]) => [`--${of}`, `${at}`]);
    const path = `${HERE}:${fileURLToPath(new URL("../python-shim", import.meta.url))}`;
    const measured = await stand.python([SCRIPT, ...args], {
      env: { ...env, PYTHONPATH: path },
      timeoutMs: seconds * 1000 + SLACK_MS,
    });
    return { ...measured, samples };
  } finally {
    clearInterval(watch);
    await stand.close();
  }
}
