// Owns the accuracy of `tierkv doctor` and the ledger: forecast times and counted savings over measured ones.
import { fileURLToPath } from "node:url";
import { thisMachine } from "../dist/extras/stand/machine.js";
import { engineEnvironment } from "./lib/engine.js";
import { describe, median } from "./lib/figures.js";
import { TIERKV } from "./lib/paths.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./forecast.py", import.meta.url));
const TIMEOUT_MS = 1_200_000;
const GIB = 2 ** 30;
const MODEL = { kind: "llama", hidden: 512, layers: 8, heads: 8, "kv-heads": 4, "head-dim": 64 };
/** Longest prompt that doctor forecasts; measured prompts have one token less, because one is generated. */
const MODEL_LEN = 12_288;
const LENGTHS = [1024, 4096, MODEL_LEN];
const ROUNDS = 5;
const ERROR_MOST = 0.2;
const LEDGER_ERROR_MOST = 0.1;

export const title = "What `tierkv doctor` forecasts, over what was measured after it";

export async function run({ isQuick, say }) {
  const stand = new Stand();
  try {
    const { dtype, cores } = thisMachine();
    const shape = { ...MODEL, seed: 1, vocab: 1024, dtype, "max-position": MODEL_LEN };
    const model = await stand.makeModel(shape);
    const options = { arenaBytes: GIB, codec: "int8", restore: "" };
    const { socket, config } = await stand.sidecar(await stand.vault(2 * GIB), options);
    say("an engine: prompts computed and restored, before and after its forecast");
    const flags = {
      model,
      dtype,
      socket,
      "model-len": MODEL_LEN,
      lengths: JSON.stringify(LENGTHS.map((tokens) => Math.min(tokens, MODEL_LEN - 1))),
      rounds: isQuick ? 1 : ROUNDS,
      doctor: JSON.stringify([process.execPath, TIERKV, "doctor", "--json", "--config", config]),
    };
    const args = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, String(value)]);
    // The last core is left to sidecar and vault.
    const env = engineEnvironment(cores.slice(0, Math.max(1, cores.length - 1)));
    return resultOf(await stand.python([SCRIPT, ...args], { env, timeoutMs: TIMEOUT_MS }));
  } finally {
    await stand.close();
  }
}

function resultOf({ doctor, cells, ledger }) {
  const [{ prompts }] = doctor.engines;
  const figures = LENGTHS.flatMap((tokens) => {
    const said = prompts.find((prompt) => prompt.tokens === tokens);
    const seen = cells.filter((cell) => cell.tokens === Math.min(tokens, MODEL_LEN - 1));
    return [
      forecastFigure(`computed, ${tokens} tokens`, said.computeMs, seen.map(ms("computed"))),
      forecastFigure(`restored, ${tokens} tokens`, said.restoreMs, seen.map(ms("restored"))),
    ];
  });
  figures.push(ledgerFigure(ledger, cells));
  const notes = [
    "measured: adding a request to its first token; the ratio is the forecast over the median of what was measured",
    "saved: what the ledger counted, over the time to the first token of each prompt computed, less that of it restored",
  ];
  return { figures, notes, cells, prompts, ledger };
}

const ms = (name) => (cell) => cell[name] * 1e3;

/** Compares the ledger with an A/B run: each prompt computed and restored. */
function ledgerFigure({ savedS, restores }, cells) {
  if (restores !== cells.length) throw new Error(`${restores} of ${cells.length} were restored`);
  const measured = cells.map(({ computed, restored }) => computed - restored);
  const sum = measured.reduce((all, one) => all + one, 0);
  return describe({
    name: "saved, by the ledger",
    unit: "s",
    value: savedS,
    min: sum,
    max: sum,
    ratio: savedS / sum,
    of: "measured",
    floor: { on: "ratio", least: 1 - LEDGER_ERROR_MOST, most: 1 + LEDGER_ERROR_MOST },
  });
}

function forecastFigure(name, forecastMs, measuredMs) {
  return describe({
    name,
    unit: "ms",
    value: forecastMs,
    min: Math.min(...measuredMs),
    max: Math.max(...measuredMs),
    ratio: forecastMs / median(measuredMs),
    of: "measured",
    floor: { on: "ratio", least: 1 - ERROR_MOST, most: 1 + ERROR_MOST },
  });
}
