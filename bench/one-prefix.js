// Owns the figures of many requests of few prompts after a restart: tierKV beside vLLM alone and vLLM's own offloading.
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/extras/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe, median, quantile } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./one_prefix.py", import.meta.url));
const HERE = fileURLToPath(new URL(".", import.meta.url));
const TIMEOUT_MS = 900_000;
const GIB = 2 ** 30;
/** Llama-3.1-8B's KV of a token, all layers. */
const TOKEN_BYTES = 128 * 2 ** 10;
/** Compute time of a token in us, as for a 70B model on one GPU. */
const TOKEN_US = 200;
const WORK = { tokens: 1024, counts: [8, 64, 256], rounds: 7 };
const QUICK = { ...WORK, rounds: 3 };
/** Prefixes that lie outside the engine, as in one_prefix.py, and how many of them each shape asks. */
const STORED = 8;
const PREFIXES = { one: 1, eight: 8, n: 1 };
const SHAPES = { one: "one prefix", eight: "8 prefixes", n: "n = 8" };
const [ALONE, OFFLOADING] = ["vLLM alone", "vLLM's OffloadingConnector"];
/** As it comes on one machine: its own vault, and it restores what is faster than computing. Made to restore whatever is held. A vault behind TCP. */
const [OURS, FORCED, OVER_TCP] = ["tierKV", 'tierKV, when = "always"', "tierKV, a vault over TCP"];
const restoring = (when) => `[restore]\nwait_ms = 60000\nstall_ms = 30000\nwhen = "${when}"\n`;
const BLOCKS = { on: "ratio", most: 1.1 };
const STEPS = { on: "ratio", most: 1.05 };
const NO_LATER = { on: "ratio", most: 1 };

export const title =
  "Many requests of one prefix that lies outside the engine (Llama-3.1-8B's KV, nothing computed)";

/** A quick run asks all that a whole one does, in fewer rounds. */
export const isWholeWhenQuick = true;

export async function run({ isQuick, say }) {
  const work = isQuick ? QUICK : WORK;
  const held = STORED * work.tokens * TOKEN_BYTES;
  const kvBytes = 3 * GIB;
  const cells = {};
  for (const [name, options] of [
    [ALONE, {}],
    [OFFLOADING, { offloadBytes: Math.ceil(1.5 * held) }],
    [OURS, { vaultBytes: 2 * held, restore: restoring("faster") }],
    [FORCED, { vaultBytes: 2 * held, restore: restoring("always") }],
    [OVER_TCP, { vaultBytes: 2 * held, restore: restoring("faster"), isOverTcp: true }],
  ]) {
    say(name);
    cells[name] = groupsOf(await measure({ ...work, kvBytes, ...options }));
  }
  const each = cells[OURS].map((ours, at) => [
    ours,
    cells[ALONE][at],
    cells[OFFLOADING][at],
    cells[FORCED][at],
    cells[OVER_TCP][at],
  ]);
  return {
    figures: each.flatMap(([ours, alone, offloading, forced, overTcp]) => [
      ...countsOf(ours, alone, nameOf(ours)),
      ...timesOf(ours, alone, offloading),
      ...countsOf(forced, alone, `${nameOf(ours)}, always restored`),
      ...countsOf(overTcp, alone, `${nameOf(ours)}, over TCP`),
    ]),
    notes: [
      `prefixes of ${work.tokens} tokens, each request with 16 tokens of its own; a token computes for ${TOKEN_US} us, asleep; its blocks lie in this machine's own vault, in a vault behind TCP on the loopback, or in the offloading's host memory, and the engine's own cache is empty`,
      `blocks taken from the engine's pool, and steps that schedule tokens; first token: from adding all requests to each answer's first token; medians of ${work.rounds} rounds`,
      'tierKV restores where that answers first, and with [restore] when = "always" whatever is held; requests run as their prefixes arrive, so eight prefixes take more and smaller steps',
      ...each.map(summaryOf),
    ],
    cells,
  };
}

const nameOf = ({ count, shape }) => `${count} requests, ${SHAPES[shape]}`;

/** Puts the rounds of one count and shape together. */
function groupsOf(measured) {
  const keys = [...new Set(measured.map(nameOf))];
  return keys.map((key) => {
    const rounds = measured.filter((one) => nameOf(one) === key);
    return { count: rounds[0].count, shape: rounds[0].shape, rounds };
  });
}

const counts = ({ rounds }, what) => rounds.map((round) => round[what]);

/** Returns the milliseconds until that share of the answers have begun, by round. */
const firstMs = ({ rounds }, share) => rounds.map(({ first }) => quantile(first, share) * 1e3);

/** Returns a figure whose ratio is that of two medians, as the engines ran one after the other. */
function compared(name, unit, values, base, of, floor) {
  const value = median(values);
  const range = { min: Math.min(...values), max: Math.max(...values), samples: values.length };
  return describe({ name, unit, value, ...range, ratio: value / base, of, floor });
}

function countsOf(ours, alone, name) {
  const counted = (what, of, floor) =>
    compared(`${name}: ${of}`, "", counts(ours, what), median(counts(alone, what)), ALONE, floor);
  return [
    counted("blocks", "blocks taken", BLOCKS),
    compared(
      `${name}: loads`,
      "",
      counts(ours, "loads"),
      PREFIXES[ours.shape],
      "prefixes",
      NO_LATER,
    ),
    counted("steps", "steps with tokens", STEPS),
  ];
}

function timesOf(ours, alone, offloading) {
  return [0.5, 0.99].flatMap((share) =>
    [
      [ALONE, alone],
      [OFFLOADING, offloading],
    ].map(([who, other]) =>
      compared(
        `${nameOf(ours)}: first token, p${share * 100}`,
        "ms",
        firstMs(ours, share),
        median(firstMs(other, share)),
        who,
        NO_LATER,
      ),
    ),
  );
}

/** Returns one line of all engines. */
function summaryOf(group) {
  const across = (values) => values.map((value) => String(Math.round(value))).join(" / ");
  const all = (what) => across(group.map((each) => median(counts(each, what))));
  const ms = (share) => across(group.map((each) => median(firstMs(each, share))));
  return `${nameOf(group[0])}, ${[OURS, ALONE, OFFLOADING, FORCED, OVER_TCP].join(" / ")}: blocks ${all("blocks")}, loads ${all("loads")}, steps ${all("steps")}, first token p50 ${ms(0.5)} ms, p99 ${ms(0.99)} ms`;
}

async function measure({ kvBytes, offloadBytes, vaultBytes, restore, isOverTcp, ...work }) {
  const stand = new Stand();
  try {
    const { cores } = thisMachine();
    const model = await stand.makeModel({ geometry: "llama-3.1-8b" });
    const flags = {
      model,
      ...work,
      counts: JSON.stringify(work.counts),
      "kv-bytes": kvBytes,
      "token-us": TOKEN_US,
      ...(offloadBytes === undefined ? {} : { "offload-bytes": offloadBytes }),
    };
    if (vaultBytes !== undefined) {
      const address = isOverTcp ? await stand.vault(vaultBytes) : null;
      const options = { arenaBytes: 1.5 * GIB, codec: "auto", restore, vaultBytes };
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
