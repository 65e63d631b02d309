// Owns the figures of a link that carries only part of the saves: tokens restored, with and without saving returning prompts first.
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/extras/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe } from "./lib/figures.js";
import { Network } from "./lib/network.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./worth.py", import.meta.url));
const HERE = fileURLToPath(new URL(".", import.meta.url));
const TIMEOUT_MS = 400_000;
const GIB = 2 ** 30;
/** 16 KiB of KV a token. */
const MODEL = { kind: "llama", hidden: 64, layers: 8, heads: 8, "kv-heads": 8, "head-dim": 64 };
const TOKEN_BYTES = 16 * 2 ** 10;
const LOAD = { conversations: 12, texts: 6, once: 60 };
const QUICK = { conversations: 6, texts: 3, once: 28 };
const ENGINE_TOKENS = 24_576;
/** Rate for saves; restores are not shaped, because they go first where engines share a link. */
const UP_MBIT = 80;
const AS_THEY_COME = "as they come";

export const title =
  "Saves over a link that carries a part of them: what comes back in the next round";

export async function run({ isQuick, say }) {
  const cells = [];
  const load = isQuick ? QUICK : LOAD;
  for (const name of [AS_THEY_COME, "returning first"]) {
    say(name);
    cells.push({ name, ...(await measure(load, name === AS_THEY_COME)) });
  }
  const [{ hits: base }] = cells;
  const figures = cells.map(({ name, hits }) =>
    describe({
      name: `${name}: tokens of earlier turns and shared texts restored`,
      unit: "%",
      value: hits * 100,
      ...(name === AS_THEY_COME ? {} : { ratio: hits / base, of: AS_THEY_COME }),
    }),
  );
  const share = (value) => `${Math.round(value * 100)} %`;
  const notes = cells.map(
    ({ name, talks, texts, computed, savedBytes }) =>
      `${name}: conversations ${share(talks)}, shared texts ${share(texts)}; ${share(savedBytes / (computed * TOKEN_BYTES))} of what was computed was saved`,
  );
  return { figures, notes, cells };
}

async function measure(load, asTheyCome) {
  const network = new Network();
  const stand = new Stand();
  try {
    const { cores } = thisMachine();
    const model = await stand.makeModel({
      ...MODEL,
      seed: 1,
      vocab: 512,
      dtype: "bfloat16",
      "max-position": 16_384,
    });
    const address = await stand.vault(4 * GIB, network);
    const shape = ["tbf", "rate", `${UP_MBIT}mbit`, "burst", "50000", "latency", "50ms"];
    execFileSync("tc", ["qdisc", "replace", "dev", network.here, "root", ...shape]);
    const { socket } = await stand.sidecar(address, { arenaBytes: GIB, codec: "raw" });
    const flags = { model, socket, "kv-bytes": ENGINE_TOKENS * TOKEN_BYTES, ...load };
    const args = Object.entries({ ...flags, "as-they-come": asTheyCome ? 1 : 0 });
    const { VLLM_CPU_KVCACHE_SPACE: _, ...env } = engineEnvironment(cores);
    const path = `${HERE}:${fileURLToPath(new URL("../python-shim", import.meta.url))}`;
    return await stand.python([SCRIPT, ...args.flatMap(([of, at]) => [`--${of}`, `${at}`])], {
      env: { ...env, PYTHONPATH: path },
      timeoutMs: TIMEOUT_MS,
    });
  } finally {
    await stand.close();
    network.close();
  }
}
