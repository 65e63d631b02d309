// Owns `tierkv fidelity`: measures how restored blocks change the answers of the user's model, and certifies it for INT8.
import { existsSync, readFileSync, statSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { fileReason, TierkvError } from "../../base/errors.ts";
import { CERTIFIED_PROMPTS_MIN } from "../../base/limits/codec.ts";
import {
  FIDELITY_AT_ONCE,
  FIDELITY_JUDGE_MS,
  FIDELITY_PROMPT_CHARS,
  FIDELITY_PROMPTS_DEFAULT,
  FIDELITY_PROMPTS_MAX,
  FIDELITY_ROUND_PROMPTS,
  FIDELITY_START_MS,
} from "../../base/limits/tools.ts";
import { showMs, showShare, table } from "../../base/text.ts";
import { randomId, wallClockMs } from "../../base/time.ts";
import type { Config } from "../../config/config.ts";
import { optionOr } from "../../config/override.ts";
import { askSidecar, untilSaved } from "../../control/ask-sidecar.ts";
import { showFidelity } from "../../control/form.ts";
import type { SidecarLink } from "../../control/sidecar-link.ts";
import { EngineAsker } from "../../extras/fidelity/engine-asker.ts";
import type { Answered } from "../../extras/fidelity/engine-asker.ts";
import { finalVerdict, judgement } from "../../extras/fidelity/judgement.ts";
import type { Judgement, Trio, Verdict } from "../../extras/fidelity/judgement.ts";
import type { Likeness } from "../../extras/fidelity/likeness.ts";
import type { Place } from "../../extras/fidelity/model-engine.ts";
import type { EngineFidelity, EngineStatus } from "../../sidecar/engine/engine-status.ts";
import type { Certificate } from "../../sidecar/save/certificate.ts";
import { writeCertificate } from "../../sidecar/save/certificates.ts";
import { codecId, LOSSY } from "../../sidecar/save/codecs.ts";
import { eachAtOnce } from "../at-once.ts";
import type { Call, Outcome } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { engineUrl } from "../shell/option-kinds.ts";
import { SpokenProgress } from "../shell/progress.ts";

/** Multiples of the golden section, without whole parts, are spread evenly, however few they are. */
const GOLDEN = (Math.sqrt(5) - 1) / 2;

/** Exit codes by verdict. */
const EXIT: Readonly<Record<Verdict, number>> = { within: 0, beyond: 1, undecided: 3 };

interface FidelityFlags {
  engine?: string;
  model?: string;
  text: string;
  prompts?: string;
}

export function addFidelity(program: Command): void {
  program
    .command("fidelity")
    .summary("measure how restored blocks change a model's answers, and certify it for INT8")
    .description(
      "Sends each prompt three times: computed, from the engine's own cache, and restored by tierKV after that cache is\n" +
        "emptied. Compares the greedy answers token by token, with the probabilities of the likeliest tokens. Ends early if\n" +
        `the verdict is clear. Within [codec] max_kld, and from ${CERTIFIED_PROMPTS_MIN} restored prompts on, it writes a certificate,\n` +
        'with which `[codec] kv = "auto"` stores blocks of this model as INT8. Run it on the machine of an engine with\n' +
        "VLLM_SERVER_DEV_MODE=1 and no other users, whose sidecar has [turbo_quant] enabled = true. With --model, it starts vaults, a sidecar and vLLM on the CPU\n" +
        "and stops them at the end; that needs a Python with vLLM and tierkv: the one of the wheel's environment, or the\n" +
        "one that the variable TIERKV_PYTHON names. Exit code 0: within the bound, 1: beyond it, 3: too few prompts to\n" +
        "judge.",
    )
    .option("--engine <url>", "address of the engine, like http://127.0.0.1:8000")
    .option("--model <dir>", "folder of a model's files, instead of an engine")
    .requiredOption("--text <file>", "text typical of the model's use; prompts are pieces of it")
    .option(
      "--prompts <n>",
      `most prompts (default: ${FIDELITY_PROMPTS_DEFAULT}, or as many as take ${FIDELITY_JUDGE_MS / 60_000} minutes)`,
    )
    .example(
      "tierkv fidelity --engine http://127.0.0.1:8000 --text corpus.txt",
      "tierkv fidelity --model ./Qwen3-0.6B --text corpus.txt",
    )
    .does(runFidelity);
}

async function runFidelity(call: Call<FidelityFlags>): Promise<Outcome> {
  const { engine: url, model } = call.options;
  const engine = optionOr(engineUrl, "--engine", url, undefined);
  const prompts = piecesOf(readText(call.options.text), countOf(call.options.prompts));
  const config = call.loadConfig();
  const progress = new SpokenProgress(call.io);
  if (engine !== undefined && model === undefined) {
    const place = { engine, socket: config.sidecar.socket, signal: null };
    return await new Measurement(call, config, prompts, progress).run(place);
  }
  if (model === undefined || engine !== undefined) {
    const reason = "one of --engine and --model is needed: a running engine, or a model's files";
    throw new TierkvError("USAGE", { reason });
  }
  checkModel(model);
  const { findPython } = await import("../../extras/stand/python.ts");
  findPython(call.io.env);
  const { withEngineOf } = await import("../../extras/fidelity/model-engine.ts");
  progress.step(`about ${showMs(FIDELITY_START_MS)} to start vLLM, then ${forecastText(call)}`);
  return await withEngineOf(resolve(model), {
    say: (what) => progress.step(what),
    during: (what, work) => progress.during(what, work),
    work: (place) => new Measurement(call, config, prompts, progress).run(place),
  });
}

function forecastText({ options: { prompts } }: Call<FidelityFlags>): string {
  return prompts === undefined
    ? `at most about ${showMs(FIDELITY_JUDGE_MS)} to measure`
    : `up to ${prompts} ${prompts === "1" ? "prompt" : "prompts"} to measure`;
}

function checkModel(model: string): void {
  const fault = (reason: string): TierkvError =>
    new TierkvError("USAGE", { reason: `--model ${model}: ${reason}` });
  const found = statSync(model, { throwIfNoEntry: false });
  if (found === undefined) throw fault("there is no such folder");
  if (!found.isDirectory()) throw fault("it is no folder; name the folder of a model's files");
  if (!existsSync(join(model, "config.json")))
    throw fault("there is no config.json; name the folder of a model's files");
}

export interface Result extends Omit<Judgement, "verdict" | "low" | "high"> {
  verdict: Verdict;
  prompts: number;
  /** Number of prompts of which tierKV restored tokens. */
  restored: number;
  restoredTokens: number;
}

/** Measures in rounds until the verdict is clear, or prompts or time are over. */
class Measurement {
  readonly #call: Call<FidelityFlags>;
  readonly #config: Config;
  readonly #prompts: readonly string[];
  readonly #progress: SpokenProgress;
  readonly #trios: Trio<Answered>[] = [];
  /** Prompts that are answered at once. */
  #atOnce = 1;

  constructor(
    call: Call<FidelityFlags>,
    config: Config,
    prompts: readonly string[],
    progress: SpokenProgress,
  ) {
    this.#call = call;
    this.#config = config;
    this.#prompts = prompts;
    this.#progress = progress;
  }

  run({ engine: url, socket, signal }: Place): Promise<Outcome> {
    return askSidecar(socket, async (link) => {
      const engine = new EngineAsker(url, `fidelity-${randomId()}`, signal);
      const model = await engine.model();
      const own = engineIn((await link.status()).engines);
      if (own !== null) checkIsLossy(own.fidelity);
      // Other requests in a step change the order of an engine's sums, which changes answers only where they are rounded.
      this.#atOnce = own?.fidelity.dtype === "f32" ? FIDELITY_AT_ONCE : 1;
      const bound = this.#config.codec.maxKld;
      await this.#rounds(engine, model, link, bound);
      const result = judge(this.#trios, bound);
      const { kvCodec, engines } = await link.status();
      const name = this.#call.options.model ?? model;
      const certificate = this.#certify(result, basename(name), engineIn(engines));
      const path = certificate && writeCertificate(this.#config.codec.certificates, certificate);
      const lines = describe(name, kvCodec, result, { bound, path, dtype: own?.fidelity.dtype });
      const isWithin = result.verdict === "within";
      this.#call.print({ model: name, codec: kvCodec, isWithin, ...result, certificate }, lines);
      return EXIT[result.verdict];
    });
  }

  async #rounds(
    engine: EngineAsker,
    model: string,
    link: SidecarLink,
    bound: number,
  ): Promise<void> {
    const startedMs = this.#progress.tookMs;
    const isTimed = this.#call.options.prompts === undefined;
    const all = this.#prompts.length;
    let roundMs = 0;
    while (this.#trios.length < all) {
      const measuredMs = this.#progress.tookMs - startedMs;
      // A round that would end too late does not begin, unless a certificate still needs it.
      const isLate = isTimed && measuredMs + roundMs > FIDELITY_JUDGE_MS;
      if (isLate && restoredOf(this.#trios).length >= CERTIFIED_PROMPTS_MIN) return;
      const first = this.#trios.length;
      const round = this.#prompts.slice(first, first + FIDELITY_ROUND_PROMPTS);
      await this.#progress.repeating(() => this.#round(engine, model, link, round));
      roundMs = this.#progress.tookMs - startedMs - measuredMs;
      const restored = restoredOf(this.#trios);
      const { verdict } = judgement(restored, bound);
      if (verdict === "beyond") return;
      if (verdict === "within" && restored.length >= CERTIFIED_PROMPTS_MIN) return;
    }
  }

  async #round(
    engine: EngineAsker,
    model: string,
    link: SidecarLink,
    prompts: readonly string[],
  ): Promise<void> {
    const before = this.#trios.length;
    const startedMs = this.#progress.tookMs;
    const tell = (done: number, what: string): void => {
      const took = this.#progress.tookMs - startedMs;
      const last = before + prompts.length;
      const isEnd = last === this.#prompts.length;
      const left = done === 0 || !isEnd ? null : (took / done) * (3 * prompts.length - done);
      const answers = `answers, prompts ${before + 1} to ${last} of at most ${this.#prompts.length}: ${what}`;
      this.#progress.at(done, 3 * prompts.length, answers, left);
    };
    let done = 0;
    tell(done, "computed, and from the engine's own cache");
    // Each prompt is answered twice in a row, because a small cache does not keep all of them.
    const started = await eachAtOnce(prompts, this.#atOnce, async (prompt) => {
      const computed = await engine.answer(model, prompt);
      const own = await engine.answer(model, prompt);
      tell((done += 2), "computed, and from the engine's own cache");
      return { prompt, computed, own };
    });
    await untilSaved(link);
    await engine.emptyCache();
    const trios = await eachAtOnce(started, this.#atOnce, async ({ prompt, computed, own }) => {
      const restored = await engine.answer(model, prompt);
      tell((done += 1), "restored");
      return { computed, own, restored };
    });
    this.#trios.push(...trios);
  }

  /** null: the measurement certifies nothing. */
  #certify(
    { verdict, tierkv, ownCache, restored }: Result,
    model: string,
    engine: EngineStatus | null,
  ): Certificate | null {
    const subject = engine === null ? null : certifiable(engine.fidelity);
    if (subject === null || verdict !== "within" || restored < CERTIFIED_PROMPTS_MIN) return null;
    return {
      model,
      ...subject,
      codec: codecId(LOSSY.name),
      version: LOSSY.version,
      prompts: restored,
      tokens: tierkv.tokens,
      kldMean: tierkv.kldMean,
      kldWorst: tierkv.kldMax,
      floor: ownCache.kldMean,
      date: new Date(wallClockMs()).toISOString().slice(0, "2026-11-28".length),
      command: `tierkv fidelity ${this.#call.options.model === undefined ? "--engine URL" : `--model ${model}`} --text ${basename(this.#call.options.text)}`,
    };
  }
}

/** Returns what a certificate of this engine is about; null: nothing that another engine could meet. */
function certifiable({
  identity,
  codec,
  dtype,
}: EngineFidelity): Pick<Certificate, "weights" | "order" | "dtype"> | null {
  if (identity === null || dtype === null || codec !== LOSSY.name) return null;
  const { weights, order } = identity;
  // Weights that were changed in place are no other engine's.
  return order === 0 || weights.includes("+") ? null : { weights, order, dtype };
}

/** Returns the engine of the measurement; null: the sidecar serves several, and none can be told from the others. */
function engineIn(engines: readonly EngineStatus[]): EngineStatus | null {
  const [engine = null] = engines;
  return engines.length === 1 ? engine : null;
}

/** Throws USAGE for an engine that is exact for want of a certificate: nothing of the codec would be seen. */
function checkIsLossy(fidelity: EngineFidelity): void {
  if (fidelity.codec !== null || fidelity.why === "configured") return;
  const reason = `this engine's blocks are ${showFidelity(fidelity)}, so restored ones show nothing of INT8: set [turbo_quant] enabled = true for the measurement and restart sidecar and engine, or name --model`;
  throw new TierkvError("USAGE", { reason });
}

function restoredOf(trios: readonly Trio<Answered>[]): Trio<Answered>[] {
  return trios.filter(({ restored }) => restored.restoredTokens > 0);
}

/** Compares with the own cache's answers, because both compute the same rest of the prompt. Throws when nothing was restored. */
export function judge(trios: readonly Trio<Answered>[], bound: number): Result {
  const compared = restoredOf(trios);
  if (compared.length === 0) {
    const fix = `try [restore] when = "always", and ask \`tierkv explain\``;
    throw new TierkvError("ENGINE_ANSWER", { reason: `no prompt was restored; ${fix}` });
  }
  const judged = judgement(compared, bound);
  const { ownCache, tierkv, excess } = judged;
  return {
    verdict: finalVerdict(judged, bound),
    ownCache,
    tierkv,
    excess,
    prompts: trios.length,
    restored: compared.length,
    restoredTokens: compared.reduce((sum, { restored }) => sum + restored.restoredTokens, 0),
  };
}

interface Shown {
  bound: number;
  /** File of the certificate; null: there is none. */
  path: string | null;
  dtype: EngineFidelity["dtype"] | undefined;
}

function describe(model: string, codec: string, result: Result, shown: Shown): string[] {
  const head = ["answers", "same", "top-1", "KLD mean", "KLD worst", "perplexity"];
  const rows = [
    ["own cache, against computed", ...cells(result.ownCache)],
    [`restored (${codec}), against own cache`, ...cells(result.tierkv)],
  ];
  const { restored, restoredTokens } = result;
  return [
    `${model}: ${restored} prompts, ${restoredTokens} of their tokens restored`,
    ...table([head, ...rows], "  "),
    verdictText(codec, result, shown),
    ...certifiedText(result, shown.path),
  ];
}

/** Exported for its test: where the certificate is, or why there is none. */
export function certifiedText(
  { verdict, prompts, restored }: Pick<Result, "verdict" | "prompts" | "restored">,
  path: string | null,
): string[] {
  if (path !== null) return [`Certified: ${path}; engines use it once they connect.`];
  if (verdict !== "within") return [];
  if (restored < CERTIFIED_PROMPTS_MIN)
    return [
      `Not certified: ${restored} of ${prompts} prompts were restored, and a certificate takes ${CERTIFIED_PROMPTS_MIN}; repeat with more --prompts.`,
    ];
  return [
    `Not certified: a certificate is about ${LOSSY.name}, one engine of the sidecar, weights as they were loaded, and a proven order of K and V (\`tierkv status\`).`,
  ];
}

/** Exported for its test: the verdict, and what an engine of 16-bit values needs for a sound one. */
export function verdictText(
  codec: string,
  {
    verdict,
    excess,
    prompts,
    ownCache,
  }: Pick<Result, "verdict" | "excess" | "prompts" | "ownCache">,
  { bound, dtype }: Pick<Shown, "bound" | "dtype">,
): string {
  const limit = bound.toExponential();
  const added = `${Math.max(0, excess).toExponential(1)} nats a token beyond what two exact runs differ by`;
  const isRounded = dtype === "bf16" || dtype === "f16";
  const caution = isRounded
    ? ` In ${dtype} a last bit changes answers as much as a codec: start the engine with --dtype float32 to see the codec alone.`
    : "";
  if (verdict === "within")
    return `Within the bound of ${limit}: restoring adds ${added}.${caution}`;
  if (verdict === "beyond") {
    const fix = `write [codec] kv = "${codec === "int8" ? LOSSY.name : "raw"}"`;
    return `Beyond the bound of ${limit}: restoring adds ${added}; ${fix}.${caution}`;
  }
  const floor = ownCache.kldMean.toExponential(1);
  const repeat = `repeat with --prompts ${Math.min(FIDELITY_PROMPTS_MAX, prompts * 4)} and enough text`;
  const fix = isRounded
    ? `in ${dtype} two exact runs differ by ${floor}; start the engine with --dtype float32, or ${repeat}`
    : repeat;
  return `Not enough to judge: ${prompts} prompts leave it open whether restoring adds more than ${limit}; ${fix}.`;
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
    const reason = `--text ${path} cannot be read: ${fileReason(error)}`;
    throw new TierkvError("USAGE", { reason }, { cause: error });
  }
}

/** Cuts pieces of equal length from the whole text, each with a different start; any first few lie all over it. */
export function piecesOf(text: string, count: number): string[] {
  const room = text.length - FIDELITY_PROMPT_CHARS;
  if (room < count) {
    const reason = `--text: ${text.length} characters are too few; ${count} prompts take ${FIDELITY_PROMPT_CHARS + count}, and a certificate ${CERTIFIED_PROMPTS_MIN} of them (--prompts)`;
    throw new TierkvError("USAGE", { reason });
  }
  return Array.from({ length: count }, (_none, index) => {
    const start = Math.floor(((index * GOLDEN) % 1) * room);
    return text.slice(start, start + FIDELITY_PROMPT_CHARS);
  });
}
