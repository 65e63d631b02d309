// Owns the demo's scenario: the order of requests, and the caches emptied or processes restarted between them.
import { readFileSync } from "node:fs";
import {
  DEMO_ANSWER_TOKENS,
  DEMO_COLD_MS,
  DEMO_COLD_QUICK_MS,
  DEMO_MODEL_LEN_MAX,
  DEMO_PROMPT_CHARS_MAX,
  DEMO_PROMPT_CHARS_MIN,
  DEMO_SAVE_WAIT_MS,
  DEMO_WARMUP_CHARS,
} from "../../base/limits/general.ts";
import { DEMO_READ_CHARS, DEMO_READ_TOKENS, DEMO_STILL_MS } from "../../base/limits/tools.ts";
import { shipped } from "../../base/shipped.ts";
import { nowMs } from "../../base/time.ts";
import { dataText } from "../stand/data.ts";
import type { Answer, Engine, EngineModel, Prompt } from "../stand/engine.ts";
import { BLOCK_TOKENS } from "../stand/engine.ts";
import { waitUntil } from "../stand/processes.ts";
import type { Process } from "../stand/processes.ts";
import type { Snapshot, Stage } from "../stand/stage.ts";
import type { Codec } from "../stand/workspace.ts";
import { showBytes, showCount, showSeconds } from "./format.ts";
import type { Progress } from "./progress.ts";
import { movedBetween } from "./proof.ts";
import type { Kind, Trial } from "./proof.ts";
import { chooseReader } from "./reader.ts";
import type { Reader, ReaderWish } from "./reader.ts";

/** "Alice's Adventures in Wonderland", the first chapter and a half (Lewis Carroll, 1865; public domain). */
export const LONG_TEXT: string = dataText("src/extras/demo/data/alice.txt");
/** Python code that the trained model has not seen. */
const READABLE = shipped("python-shim/lab/tokenizer.py");
/** A document, with facts that no model has read elsewhere, and a question about it. */
const DOCUMENT: string = dataText("src/extras/demo/data/station.txt");
const QUESTION = "On which day and at what hour is the second pump tested?";

const FULL_MODEL = "--hidden 1024 --layers 12 --heads 16 --kv-heads 4 --head-dim 64";
const QUICK_MODEL = "--hidden 512 --layers 4 --heads 8 --kv-heads 4 --head-dim 64";
const EMPTY_CACHE = "empty the engine's own cache";
const TO_INT8 = "change to a sidecar that stores INT8";

export interface Scene {
  stage: Stage;
  progress: Progress;
  signal: AbortSignal;
  isQuick: boolean;
}

export interface Outcome {
  trials: Trial[];
  /** The engine still running, and the prompt of all trials. */
  engine: Engine;
  prompt: string;
}

/** A question to a model that people can read, and the trials: computed, own hit, restored in both codecs. */
export interface Reading {
  reader: Reader;
  asked: string;
  trials: Trial[];
}

/** Asks a model that people can read, restores in both codecs, and stops everything it started except the vaults. */
export async function readAloud(scene: Scene, wish: ReaderWish): Promise<Reading> {
  const { stage, progress } = scene;
  const reader = await chooseReader(scene, wish);
  for (const reason of reader.passedOver) progress.line(`  passed over: ${reason}`);
  progress.line(`  reads with ${reader.what}`);
  const sidecar = await progress.step("start a sidecar", () => stage.startSidecar());
  const engine = await startEngine(scene, "start vLLM with a model that reads", reader.model);
  const { prompt, asked } = await promptFor(reader, engine);
  const read = async (kind: Kind, name: string, codec: Codec): Promise<Trial> =>
    send(scene, engine, { kind, name, codec, prompt, tokens: DEMO_READ_TOKENS, mayEnd: true });
  const save = (name: string, codec: Codec): Promise<Trial> =>
    saved(scene, engine, () => read("cold", name, codec));
  const cold = await save("computed", "raw");
  const own = await read("own", "own hit", "raw");
  await engine.emptyCache();
  const exact = await read("restore", "restored", "raw");
  const second = await progress.step(TO_INT8, () => stage.changeSidecar(engine, sidecar, "int8"));
  await save("computed, INT8 sidecar", "int8");
  await engine.emptyCache();
  const lossy = await read("restore", "restored as INT8", "int8");
  await stop(scene, engine, second);
  return { reader, asked, trials: [cold, own, exact, lossy] };
}

/** A question about a document, in the form that the model was trained on; code for the small trained model. */
async function promptFor(
  { task }: Reader,
  engine: Engine,
): Promise<{ prompt: Prompt; asked: string }> {
  if (task === "code") {
    const prompt = readFileSync(READABLE, "utf8").slice(0, DEMO_READ_CHARS);
    return { prompt, asked: "goes on with Python code" };
  }
  const asked = `is asked about a document: ${QUESTION}`;
  if (task === "text") return { prompt: `${DOCUMENT}\nQuestion: ${QUESTION}\nAnswer:`, asked };
  const question = `${DOCUMENT}\n${QUESTION} Answer in one sentence.`;
  return { prompt: await engine.chatTokens(question), asked };
}

/** Starts everything except the vaults, sends the requests, and leaves everything running. */
export async function perform(scene: Scene): Promise<Outcome> {
  const { stage, progress, isQuick } = scene;
  const size = isQuick ? QUICK_MODEL : FULL_MODEL;
  const rest = `--kind llama --seed 1 --vocab 1024 --max-position ${DEMO_MODEL_LEN_MAX}`;
  const flags = `${rest} ${size} --dtype ${stage.machine.dtype}`.split(" ");
  const path = stage.workspace.model;
  await progress.step("make a model with seeded random weights", () =>
    stage.makeModel(path, flags),
  );
  const model = { path, lengthMax: DEMO_MODEL_LEN_MAX };
  const sidecar = await progress.step("start a sidecar", () => stage.startSidecar());
  const first = await startEngine(scene, "start vLLM with the tierKV connector", model);
  const prompt = await choosePrompt(scene, first);
  const ask = (engine: Engine, kind: Kind, name: string, codec: Codec = "raw"): Promise<Trial> =>
    send(scene, engine, { kind, name, codec, prompt, tokens: DEMO_ANSWER_TOKENS });

  const trials = await threeWays(scene, first, (kind, name) => ask(first, kind, name));
  await stop(scene, first, sidecar);

  const second = await progress.step("start a new sidecar", () => stage.startSidecar());
  const engine = await startEngine(scene, "start a new engine", model);
  await warmUp(scene, engine, 2, "first use");
  await warmUp(scene, engine, 1, "restored");
  trials.push(await ask(engine, "restore", "restored, new engine"));

  // A sidecar that stores INT8 does not use exact blocks, so the text is computed again.
  await progress.step(TO_INT8, () => stage.changeSidecar(engine, second, "int8"));
  const cold = (): Promise<Trial> => ask(engine, "cold", "cold, INT8 sidecar", "int8");
  trials.push(await saved(scene, engine, cold));
  await progress.step(EMPTY_CACHE, () => engine.emptyCache());
  trials.push(await ask(engine, "restore", "restored as INT8", "int8"));
  return { trials, engine, prompt };
}

/** Sends the requests to compare: computed, found in the engine's own cache, restored. */
export async function threeWays(
  scene: Scene,
  engine: Engine,
  ask: (kind: Kind, name: string) => Promise<Trial>,
): Promise<Trial[]> {
  const trials = [await saved(scene, engine, () => ask("cold", "cold"))];
  trials.push(await ask("own", "own hit"));
  await scene.progress.step(EMPTY_CACHE, () => engine.emptyCache());
  trials.push(await ask("restore", "restored"));
  return trials;
}

export async function startEngine(
  { stage, progress }: Scene,
  title: string,
  model: EngineModel,
): Promise<Engine> {
  const engine = stage.startEngine(model);
  await progress.step(title, () => engine.ready(), {
    detail: () => enginePhase(engine.process.log()),
    result: () => `serving at ${engine.url}`,
  });
  return engine;
}

export function stop({ stage, progress }: Scene, engine: Engine, sidecar: Process): Promise<void> {
  return progress.step("stop the engine and the sidecar; only the vaults stay", async () => {
    await stage.stop(engine.process);
    await stage.stop(sidecar);
  });
}

/** A starting engine's phase, by the last known line in its log. */
export function enginePhase(log: string): string {
  const phases = dataText("src/extras/demo/data/phases.txt").trim().split("\n");
  const last = phases.findLast((phase) => log.includes(phase.split(": ").at(-2) ?? ""));
  return last?.split(": ").at(-1) ?? "";
}

/** Warms the first engine up, and chooses as much text as this machine computes in a bearable time. */
async function choosePrompt(scene: Scene, engine: Engine): Promise<string> {
  await saved(scene, engine, () => warmUp(scene, engine, 0, "first use"));
  const { answer } = await saved(scene, engine, () => warmUp(scene, engine, 1, "computed"));
  await engine.emptyCache();
  await warmUp(scene, engine, 1, "restored");
  const targetMs = scene.isQuick ? DEMO_COLD_QUICK_MS : DEMO_COLD_MS;
  return LONG_TEXT.slice(0, promptChars(answer.promptTokens, answer.ttftMs, targetMs));
}

/** One character is one token. */
export function promptChars(warmTokens: number, warmMs: number, targetMs: number): number {
  const possible = Math.round((warmTokens / warmMs) * targetMs);
  return Math.min(Math.max(possible, DEMO_PROMPT_CHARS_MIN), DEMO_PROMPT_CHARS_MAX);
}

/** Sends text that no trial uses, so that no trial pays for one-time work. */
async function warmUp(
  { progress }: Scene,
  engine: Engine,
  number: number,
  how: string,
): Promise<{ answer: Answer }> {
  const start = DEMO_PROMPT_CHARS_MAX + number * DEMO_WARMUP_CHARS;
  const text = LONG_TEXT.slice(start, start + DEMO_WARMUP_CHARS);
  const ask = (): Promise<Answer> => engine.complete(text, 2);
  const title = `warm up with another text (${how})`;
  return { answer: await progress.step(title, ask, { result: showAnswer }) };
}

interface Request extends Pick<Trial, "kind" | "name" | "codec"> {
  prompt: Prompt;
  tokens: number;
  /** Whether the model may end its answer before. */
  mayEnd?: boolean;
}

export async function send(
  { stage, progress }: Scene,
  engine: Engine,
  { prompt, tokens, mayEnd = false, ...of }: Request,
): Promise<Trial> {
  const before = await stage.snapshot(engine);
  const ask = (): Promise<Answer> => engine.complete(prompt, tokens, mayEnd);
  const answer = await progress.step(`send the text (${of.name})`, ask, { result: showAnswer });
  return { ...of, answer, moved: movedBetween(before, await stage.snapshot(engine)) };
}

function showAnswer({ promptTokens, ttftMs }: Answer): string {
  return `${showCount(promptTokens)} tokens, the first answered after ${showSeconds(ttftMs)}`;
}

/**
 * Sends a request, and waits until the vault holds its prompt's full blocks and gets no more records, because saves are
 * asynchronous, and a model with windows has several records for a block.
 */
export async function saved<Sent extends { answer: Answer }>(
  { stage, progress, signal }: Scene,
  engine: Engine,
  request: () => Promise<Sent>,
): Promise<Sent> {
  const before = await stage.snapshot(engine);
  const sent = await request();
  const wanted = Math.floor(sent.answer.promptTokens / BLOCK_TOKENS);
  let now: Snapshot = before;
  const held = (): string =>
    `${now.vaultRecords - before.vaultRecords} records of ${wanted} blocks in the vault`;
  let stillSinceMs = nowMs();
  const isHeld = async (): Promise<boolean> => {
    const earlier = now.vaultRecords;
    now = await stage.snapshot(engine);
    if (now.vaultRecords !== earlier) stillSinceMs = nowMs();
    const isStill = nowMs() - stillSinceMs >= DEMO_STILL_MS;
    return isStill && now.vaultRecords - before.vaultRecords >= wanted;
  };
  const bytes = (snapshot: Snapshot): number => snapshot.sidecar["bytes_sent"] ?? 0;
  const reason = "not all of the prompt reached the vault; see the logs of engine and sidecar";
  const work = (): Promise<void> => waitUntil(isHeld, DEMO_SAVE_WAIT_MS, reason, signal);
  await progress.step("wait until the vault holds it", work, {
    detail: held,
    result: () => `${held()}, ${showBytes(bytes(now) - bytes(before))} sent`,
  });
  return sent;
}
