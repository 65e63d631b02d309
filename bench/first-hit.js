// Owns the figures of a new engine process: from its first sign of life to its first restore, and what that takes longer than later ones.
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/extras/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { figure, median } from "./lib/figures.js";
import { at as inRoot } from "./lib/paths.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./first_hit.py", import.meta.url));
/** An earlier checkout, built, whose shim and sidecar are measured in the same rounds; left out: none is. */
const BEFORE = process.env.TIERKV_BENCH_BEFORE ?? null;
const TIMEOUT_MS = 1_800_000;
const GIB = 2 ** 30;
const ARENA_BYTES = GIB / 2;
const ROUNDS = 5;
/** Folder of digests for engines whose weights are known. */
const KNOWN = "state";
/** 1.24 GB of weights, nearly all of them in the embeddings. */
const LARGE = {
  name: "1.2 GB",
  kinds: ["unseen", "seen"],
  shape: { vocab: 151_936, hidden: 2048, layers: 2, heads: 4, "kv-heads": 4, "head-dim": 64 },
  // Enough for some seconds of computed prompts, until one is restored.
  asks: { tokens: 259, prompts: 80, later: 3, shorts: 0 },
};
/** Llama-3.1-8B's KV and next to no compute, so that milliseconds show. */
const THIN = {
  name: "thin",
  kinds: ["seen", "alone"],
  shape: { geometry: "llama-3.1-8b" },
  asks: { tokens: 515, prompts: 16, later: 11, shorts: 3 },
};
const MOST_S = 2;

export const title = "A new engine process: its first restore";

/** The kinds of start, each followed by the same of the earlier checkout. */
const withBefore = (kinds) =>
  kinds.flatMap((kind) =>
    BEFORE === null || kind === "alone" ? [kind] : [kind, `${kind} before`],
  );

export async function run({ isQuick, say }) {
  const rounds = isQuick ? 1 : ROUNDS;
  const large = await measure(LARGE, rounds, say);
  const thin = await measure(THIN, rounds, say);
  return {
    figures: [
      ...both(large, "unseen", firstOf, "1.2 GB of weights never seen"),
      ...both(large, "seen", firstOf, "1.2 GB of weights known"),
      ...both(thin, "seen", laterOf, "restored"),
      ...laterOf(thin.alone, "computed, vLLM alone", false),
      figure("time until the server answers, over vLLM alone", "s", starts(thin.seen), {
        beside: starts(thin.alone),
        of: "vLLM alone",
      }),
    ],
    notes: [
      "the engine starts its sidecar, which finds a vault that holds the prompts; prompts are asked one after another from the first answer of /health on",
      "first token of the first restored prompt and of later ones: Llama-3.1-8B's KV, 512 of 515 tokens (64 MiB) restored, after three prompts without a whole block",
    ],
    cells: [large, thin],
  };
}

/** Returns the figures of one kind of start, and of the same of the earlier checkout. */
function both(runs, kind, of, what) {
  const before = runs[`${kind} before`] ?? [];
  return [...of(runs[kind], what), ...(before.length === 0 ? [] : of(before, `before: ${what}`))];
}

const starts = (runs) => runs.map(({ start }) => start);

async function measure(work, rounds, say) {
  const stand = new Stand();
  try {
    return await played(stand, work, rounds, say);
  } finally {
    await stand.close();
  }
}

async function played(stand, { name, kinds, shape, asks }, rounds, say) {
  const model = await stand.makeModel(shape);
  const vault = await stand.vault(3 * GIB);
  const given = { arenaBytes: ARENA_BYTES, codec: "raw", idleExitS: 1 };
  const sidecar = stand.ownSidecar(vault, given);
  const serve = async (more, state, { ours = sidecar, shim = inRoot("python-shim") } = {}) => {
    const flags = { model, "kv-bytes": 2 * GIB, ...asks, fill: 0, ...ours, ...more };
    const args = Object.entries(flags).flatMap(([of, at]) => [`--${of}`, `${at}`]);
    // The last core is left to sidecar and vault, because a GPU would leave all cores to them.
    const { cores } = thisMachine();
    const own = cores.slice(0, Math.max(1, cores.length - 1));
    const {
      VLLM_CPU_KVCACHE_SPACE: _,
      VLLM_ENABLE_V1_MULTIPROCESSING: __,
      ...env
    } = engineEnvironment(own);
    return await stand.python([SCRIPT, ...args], {
      env: { ...env, PYTHONPATH: shim, XDG_STATE_HOME: stand.path(state) },
      timeoutMs: TIMEOUT_MS,
    });
  };
  say(`${name}: the vault is filled`);
  await serve({ fill: 1 }, KNOWN);
  const all = withBefore(kinds);
  const runs = Object.fromEntries(all.map((kind) => [kind, []]));
  for (let round = 0; round < rounds; round += 1) {
    for (const kind of all) {
      say(`${name}: round ${round + 1} of ${rounds}, ${kind}`);
      const state = kind.startsWith("unseen") ? `state-${round}-${kind.length}` : KNOWN;
      const shim = kind.endsWith("before") ? join(BEFORE, "python-shim") : undefined;
      runs[kind].push(await serve({}, state, { ours: kind === "alone" ? {} : undefined, shim }));
    }
  }
  return runs;
}

/** Returns the first restored prompt of a run, and the later ones; where nothing is restored, the first computed one. */
function partsOf({ asked }, isRestored) {
  const [first, ...later] = asked.filter(({ cached }) => cached > 0 === isRestored);
  if (first !== undefined) return { first, later };
  throw new Error(`no prompt of ${asked.length} was ${isRestored ? "restored" : "computed"}`);
}

function firstOf(runs, what) {
  const firsts = runs.map((one) => partsOf(one, true).first);
  return [
    figure(
      `${what}: the first restored prompt is asked after the server is up`,
      "s",
      firsts.map((one) => one.at),
      { floor: { on: "value", most: MOST_S } },
    ),
  ];
}

function laterOf(runs, what, isRestored = true) {
  const parts = runs.map((one) => partsOf(one, isRestored));
  const ms = ({ seconds }) => seconds * 1e3;
  const later = parts.map((part) => median(part.later.map(ms)));
  return [
    figure(
      `${what}: first token of the first prompt`,
      "ms",
      parts.map(({ first }) => ms(first)),
      { beside: later, of: "later prompts" },
    ),
    figure(
      `${what}: that longer than later ones`,
      "ms",
      parts.map(({ first }, round) => ms(first) - later[round]),
    ),
  ];
}
