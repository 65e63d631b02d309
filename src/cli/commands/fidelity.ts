// Owns `tierkv fidelity`: measures how restored blocks change the answers of the user's model.
import { existsSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { optionOr } from "../../config/override.ts";
import { TierkvError } from "../../errors.ts";
import {
  FIDELITY_KLD_MAX,
  FIDELITY_PROMPT_CHARS,
  FIDELITY_PROMPTS_DEFAULT,
  FIDELITY_PROMPTS_MAX,
} from "../../limits/tools.ts";
import { randomId } from "../../time.ts";
import { askSidecar, untilSaved } from "../ask-sidecar.ts";
import type { Call } from "../call.ts";
import type { Command } from "../command.ts";
import type { Answered } from "../engine-asker.ts";
import { likeness } from "../likeness.ts";
import type { Likeness } from "../likeness.ts";
import type { Place } from "../model-engine.ts";
import { engineUrl } from "../option-kinds.ts";
import { Progress } from "../progress.ts";
import { showShare, table } from "../text.ts";

/** Advice for a running engine, by decision 0125. */
const ROUNDING =
  "An engine in bfloat16 is that far off after any change, of a last bit too: then ask one with --dtype float32, or name --model.";

interface FidelityFlags {
  engine?: string;
  model?: string;
  text: string;
  prompts: string;
}

export function addFidelity(program: Command): void {
  program
    .command("fidelity")
    .summary("measure how restored blocks change a model's answers")
    .description(
      "Sends each prompt three times: computed, from the engine's own cache, and restored by tierKV after that cache is\n" +
        "emptied. Compares the greedy answers token by token, with the probabilities of the likeliest tokens. Run it on\n" +
        "the machine of an engine with VLLM_SERVER_DEV_MODE=1 and no other users. With --model, a checkout starts vaults,\n" +
        "a sidecar and vLLM on the CPU, and stops them at the end. Exit code 1 if restored answers differ from the own\n" +
        "cache's by more than the bound.",
    )
    .option("--engine <url>", "address of the engine, like http://127.0.0.1:8000")
    .option("--model <dir>", "folder of a model's files, instead of an engine")
    .requiredOption("--text <file>", "text typical of the model's use; prompts are pieces of it")
    .option("--prompts <n>", `number of prompts (default: ${FIDELITY_PROMPTS_DEFAULT})`)
    .example(
      "tierkv fidelity --engine http://127.0.0.1:8000 --text corpus.txt",
      "tierkv fidelity --model ./Qwen3-0.6B --text corpus.txt",
    )
    .does(fidelity);
}

async function fidelity(call: Call<FidelityFlags>): Promise<boolean> {
  const { engine: url, model } = call.options;
  const engine = optionOr(engineUrl, "--engine", url, undefined);
  const prompts = piecesOf(readText(call.options.text), countOf(call.options.prompts));
  if (engine !== undefined && model === undefined)
    return measure(call, prompts, { engine, socket: call.loadConfig().sidecar.socket });
  if (model === undefined || engine !== undefined) {
    const reason = "one of --engine and --model is needed: a running engine, or a model's files";
    throw new TierkvError("USAGE", { reason });
  }
  if (!existsSync(join(model, "config.json"))) {
    const reason = `--model ${model}: there is no config.json; name the folder of a model's files`;
    throw new TierkvError("USAGE", { reason });
  }
  const { withEngineOf } = await import("../model-engine.ts");
  const progress = new Progress(call.io);
  return await withEngineOf(resolve(model), {
    say: (what) => progress.at(0, 1, what),
    work: (place) => measure(call, prompts, place),
  });
}

async function measure(
  call: Call<FidelityFlags>,
  prompts: readonly string[],
  place: Place,
): Promise<boolean> {
  const { EngineAsker } = await import("../engine-asker.ts");
  return await askSidecar(place.socket, async (link) => {
    // One request at a time, because other requests in a step change the order of an engine's sums.
    const engine = new EngineAsker(place.engine, `fidelity-${randomId()}`);
    const model = await engine.model();
    const computed: Answered[] = [];
    const own: Answered[] = [];
    const restored: Answered[] = [];
    const progress = new Progress(call.io);
    const answered = (what: string): void => {
      const done = computed.length + own.length + restored.length;
      progress.at(done, 3 * prompts.length, what);
    };
    // Each prompt is answered twice in a row, because a small cache does not keep all of them.
    for (const prompt of prompts) {
      computed.push(await engine.answer(model, prompt));
      own.push(await engine.answer(model, prompt));
      answered("computed, and from the engine's own cache");
    }
    await untilSaved(link);
    await engine.emptyCache();
    for (const prompt of prompts) {
      restored.push(await engine.answer(model, prompt));
      answered("restored");
    }
    const { kvCodec } = await link.status();
    const result = judge(computed, own, restored);
    const name = call.options.model ?? model;
    const lines = describe(name, kvCodec, result);
    if (call.options.model === undefined && !result.isWithin) lines.push(ROUNDING);
    call.print({ model: name, codec: kvCodec, ...result }, lines);
    return result.isWithin;
  });
}

export interface Verdict {
  /** Number of prompts of which tierKV restored tokens. */
  restored: number;
  restoredTokens: number;
  ownCache: Likeness;
  tierkv: Likeness;
  isWithin: boolean;
}

/** Compares with the own cache's answers, because both compute the same rest of the prompt. Throws when nothing was restored. */
export function judge(
  computed: readonly Answered[],
  own: readonly Answered[],
  restored: readonly Answered[],
): Verdict {
  const isBrought = restored.map(({ restoredTokens }) => restoredTokens > 0);
  const count = isBrought.filter(Boolean).length;
  if (count === 0) {
    const fix = `try [restore] when = "always", and ask \`tierkv explain\``;
    throw new TierkvError("ENGINE_ANSWER", { reason: `no prompt was restored; ${fix}` });
  }
  const ownCache = likeness(pairs(computed, own, isBrought));
  const tierkv = likeness(pairs(own, restored, isBrought));
  const restoredTokens = restored.reduce((sum, answer) => sum + answer.restoredTokens, 0);
  const isWithin = tierkv.kldMean <= FIDELITY_KLD_MAX;
  return { restored: count, restoredTokens, ownCache, tierkv, isWithin };
}

function pairs(
  reference: readonly Answered[],
  other: readonly Answered[],
  isCompared: readonly boolean[],
): [Answered, Answered][] {
  return reference.flatMap((answer, index): [Answered, Answered][] => {
    const theirs = other[index];
    return theirs === undefined || isCompared[index] !== true ? [] : [[answer, theirs]];
  });
}

function describe(model: string, codec: string, verdict: Verdict): string[] {
  const head = ["answers", "same", "top-1", "KLD mean", "KLD worst", "perplexity"];
  const rows = [
    ["own cache, against computed", ...cells(verdict.ownCache)],
    [`restored (${codec}), against own cache`, ...cells(verdict.tierkv)],
  ];
  const bound = FIDELITY_KLD_MAX.toExponential();
  const end = verdict.isWithin
    ? `Within the bound: the mean is at most ${bound} nats a token.`
    : `Beyond the bound of ${bound} nats a token: write [codec] kv = "${codec === "int8" ? "int8-mean-had" : "raw"}".`;
  const { restored, restoredTokens } = verdict;
  return [
    `${model}: ${restored} prompts, ${restoredTokens} of their tokens restored`,
    ...table([head, ...rows], "  "),
    end,
  ];
}

function cells({ same, answers: all, top1, kldMean, kldMax, perplexity }: Likeness): string[] {
  const divergences = [kldMean, kldMax].map((value) => value.toExponential(1));
  const change = `${perplexity < 0 ? "" : "+"}${(perplexity * 100).toFixed(4)} %`;
  return [`${same} of ${all}`, showShare(top1), ...divergences, change];
}

function countOf(value: string | undefined): number {
  const count = Number(value ?? FIDELITY_PROMPTS_DEFAULT);
  if (Number.isInteger(count) && count >= 1 && count <= FIDELITY_PROMPTS_MAX) return count;
  const reason = `--prompts ${value ?? ""}: expected a whole number from 1 to ${FIDELITY_PROMPTS_MAX}`;
  throw new TierkvError("USAGE", { reason });
}

function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    const reason = `--text ${path}: cannot be read: ${String(error)}`;
    throw new TierkvError("USAGE", { reason }, { cause: error });
  }
}

/** Cuts pieces of equal length from the whole text, each with a different start. */
export function piecesOf(text: string, count: number): string[] {
  const room = text.length - FIDELITY_PROMPT_CHARS;
  if (room < count) {
    const reason = `--text: ${text.length} characters are too few; ${count} prompts take ${FIDELITY_PROMPT_CHARS + count}`;
    throw new TierkvError("USAGE", { reason });
  }
  return Array.from({ length: count }, (_none, index) => {
    const start = Math.floor((index * room) / count);
    return text.slice(start, start + FIDELITY_PROMPT_CHARS);
  });
}
