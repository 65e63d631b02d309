// Owns the figures of many conversations on one engine whose cache holds a tenth of them, beside vLLM alone and its own connector.
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/extras/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe, figure, median } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./conversations.py", import.meta.url));
const HERE = fileURLToPath(new URL(".", import.meta.url));
const TIMEOUT_MS = 1_200_000;
const GIB = 2 ** 30;
/** Llama-3.1-8B's KV of a token, all layers. */
const TOKEN_BYTES = 128 * 2 ** 10;
const GEOMETRY = "llama-3.1-8b";
/** Short turns compute about as fast as they restore; long ones compute far slower, because attention is quadratic. */
const LOADS = [
  { conversations: 16, turns: 4, asked: 112, answered: 16 },
  { conversations: 12, turns: 4, asked: 496, answered: 16, pays: true },
];
const QUICK = [{ conversations: 12, turns: 2, asked: 112, answered: 16 }];
const ENGINE_SHARE = 0.1;
const ROOM = 1.2;
const ARENA_BYTES = 1.5 * GIB;
/** Prompts that are asked alone, and again when the engine has lost them; each has the length of a whole conversation. */
const ROUNDS = 7;
const ALONE = "vLLM alone";
const IDEAL = "a cache of everything";
/** Connector, scheduler and pool are vLLM's; the copies are ours (cpu_offload.py). */
const OFFLOADING = "vLLM's offloading to host memory";
/** Records in memory that the vault of this machine lends to its sidecar. */
const OWN = "tierKV, own vault, raw";

export const title =
  "Conversations on one engine with a cache of a tenth of them (Llama-3.1-8B's KV, thin compute)";

export async function run({ isQuick, say }) {
  const parts = [];
  for (const load of isQuick ? QUICK : LOADS) parts.push(await runLoad(load, say));
  return {
    figures: parts.flatMap(({ figures }) => figures),
    notes: [
      ...parts.flatMap(({ notes }) => notes),
      "all of a round are asked at once in random order",
      `${OFFLOADING}: connector, scheduler and pool are vLLM's; its worker is for GPUs only, so one of ours copies the pages within the step, with torch`,
      "first token: prompts of a whole conversation, one after another on an idle engine; restored: asked again once all is stored and the engine's own cache is empty",
    ],
    cells: parts.flatMap(({ cells }) => cells),
  };
}

async function runLoad(load, say) {
  const { conversations, turns, asked, answered, pays = false } = load;
  const turn = asked + answered;
  const workingSet = conversations * turns * turn * TOKEN_BYTES;
  const kvBytes = Math.ceil(workingSet * ENGINE_SHARE);
  const held = Math.ceil(workingSet * ROOM);
  const cases = [
    { name: IDEAL, kvBytes: held },
    { name: ALONE, kvBytes },
    { name: OFFLOADING, kvBytes, offloadBytes: held },
    { name: OWN, kvBytes, vaultBytes: held, codec: "raw", isOwn: true },
    { name: "tierKV, raw", kvBytes, vaultBytes: held, codec: "raw" },
    { name: "tierKV, INT8", kvBytes, vaultBytes: held, codec: "int8-mean-had" },
  ];
  const label = `${conversations} of ${turns} turns of ${turn} tokens`;
  const cells = [];
  for (const one of cases) {
    say(`${label}: ${one.name}`);
    cells.push({ load: label, name: one.name, ...summed(await measure(one, load)) });
  }
  const by = (name) => cells.find((cell) => cell.name === name);
  const [ideal, alone, offloading, own] = [IDEAL, ALONE, OFFLOADING, OWN].map(by);
  const figures = cells.flatMap(({ name, hits, rate }) => {
    const isOurs = name.startsWith("tierKV");
    return [
      describe({
        name: `${label}, ${name}: prompt tokens not computed`,
        unit: "%",
        value: hits * 100,
        ratio: hits / ideal.hits,
        of: IDEAL,
        ...(isOurs && pays ? { floor: { on: "ratio", least: 0.9 } } : {}),
      }),
      describe({
        name: `${label}, ${name}: output`,
        unit: "tokens/s",
        value: rate,
        ratio: rate / alone.rate,
        of: ALONE,
        ...(isOurs ? { floor: { on: "ratio", least: 1 } } : {}),
      }),
    ];
  });
  figures.push(...besideConnector(label, own, offloading));
  const gib = (bytes) => (bytes / GIB).toFixed(1);
  const notes = [
    `${label}: ${gib(workingSet)} GiB of KV, ${gib(kvBytes)} GiB in the engine`,
    ...cells
      .filter(({ dropped }) => Object.keys(dropped).length > 0)
      .map(({ name, dropped }) => `dropped, ${label}, ${name}: ${JSON.stringify(dropped)}`),
  ];
  return { figures, notes, cells };
}

/** Returns the figures of the same bytes kept by the machine's own vault and by vLLM's connector. */
function besideConnector(label, own, offloading) {
  const ms = ({ singles }, what) => singles.map((single) => single[what] * 1e3);
  const first = (name, one, what, of = offloading, floor) =>
    describe({
      ...figure(`${label}, ${name}`, "ms", ms(one, what)),
      ratio: median(ms(one, what)) / median(ms(of, "restored")),
      of: OFFLOADING,
      ...(floor === undefined ? {} : { floor }),
    });
  return [
    first(`${OFFLOADING}: first token, restored`, offloading, "restored"),
    first(`${OWN}: first token, restored`, own, "restored", offloading, {
      on: "ratio",
      most: 1.05,
    }),
    first(`${OFFLOADING}: first token, computed`, offloading, "computed"),
    first(`${OWN}: first token, computed`, own, "computed"),
    describe({
      name: `${label}, ${OWN}: output, over the connector's`,
      unit: "tokens/s",
      value: own.rate,
      ratio: own.rate / offloading.rate,
      of: OFFLOADING,
      floor: { on: "ratio", least: 1 },
    }),
  ];
}

function summed({ rounds, generated, dropped, singles }) {
  const sum = (of) => rounds.reduce((total, round) => total + round[of], 0);
  const seconds = sum("seconds");
  return {
    hits: sum("cached") / sum("asked"),
    rate: generated / seconds,
    seconds,
    dropped,
    singles,
  };
}

async function measure({ kvBytes, offloadBytes, vaultBytes, codec, isOwn = false }, load) {
  const stand = new Stand();
  try {
    const { cores } = thisMachine();
    const model = await stand.makeModel({ geometry: GEOMETRY });
    const flags = {
      model,
      "kv-bytes": kvBytes,
      conversations: load.conversations,
      turns: load.turns,
      "asked-tokens": load.asked,
      "answer-tokens": load.answered,
      singles: offloadBytes !== undefined || isOwn ? ROUNDS : 0,
    };
    if (offloadBytes !== undefined) flags["offload-bytes"] = offloadBytes;
    if (vaultBytes !== undefined) {
      const address = isOwn ? null : await stand.vault(vaultBytes);
      const options = { arenaBytes: ARENA_BYTES, codec, restore: "", vaultBytes };
      flags.socket = (await stand.sidecar(address, options)).socket;
    }
    // The last core is left to sidecar and vault, because a GPU would leave all cores to them.
    // Removed, because vLLM prefers this variable over `kv_cache_memory_bytes`.
    const own = cores.slice(0, Math.max(1, cores.length - 1));
    const { VLLM_CPU_KVCACHE_SPACE: _, ...env } = engineEnvironment(own);
    const args = Object.entries(flags).flatMap(([of, at]) => [`--${of}`, `${at}`]);
    const path = `${HERE}:${fileURLToPath(new URL("../python-shim", import.meta.url))}`;
    return await stand.python([SCRIPT, ...args], {
      env: { ...env, PYTHONPATH: path },
      timeoutMs: TIMEOUT_MS,
    });
  } finally {
    await stand.close();
  }
}
