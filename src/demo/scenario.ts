// Owns the story the demo tells: which requests are sent in which order, and what is emptied or restarted between them.
import { TierkvError } from "../errors.ts";
import {
  DEMO_ANSWER_TOKENS,
  DEMO_COLD_MS,
  DEMO_COLD_QUICK_MS,
  DEMO_MODEL_LEN_MAX,
  DEMO_POLL_MS,
  DEMO_PROMPT_CHARS_MAX,
  DEMO_PROMPT_CHARS_MIN,
  DEMO_SAVE_QUIET_MS,
  DEMO_SAVE_WAIT_MS,
  DEMO_WARMUP_CHARS,
} from "../limits.ts";
import { nowMs, sleep } from "../time.ts";
import type { Engine, EngineModel } from "./engine.ts";
import { BLOCK_TOKENS } from "./engine.ts";
import { showBytes, showCount, showSeconds } from "./format.ts";
import type { Process } from "./processes.ts";
import type { Progress } from "./progress.ts";
import { movedBetween } from "./proof.ts";
import type { Kind, Trial } from "./proof.ts";
import type { ModelShape, Stage, VaultState } from "./stage.ts";
import { LONG_TEXT } from "./text.ts";
import type { Codec } from "./workspace.ts";

const SEED = 1;
const FULL_MODEL = { hidden: 1024, layers: 12, heads: 16, "kv-heads": 4, "head-dim": 64 };
const QUICK_MODEL = { hidden: 512, layers: 4, heads: 8, "kv-heads": 4, "head-dim": 64 };

export interface Scene {
  stage: Stage;
  progress: Progress;
  signal: AbortSignal;
  isQuick: boolean;
}

export interface Outcome {
  trials: Trial[];
  /** The engine that is still running, and the prompt of all trials. */
  engine: Engine;
  prompt: string;
}

/** Starts all but the vaults, sends the requests, and leaves everything running. */
export async function perform(scene: Scene): Promise<Outcome> {
  const { stage, progress } = scene;
  await progress.step("make a model with seeded random weights", () =>
    stage.makeModel(modelShape(scene)),
  );
  const firstSidecar = await progress.step("start a sidecar", () => stage.startSidecar());
  const first = await startEngine(scene, "start vLLM with the tierKV connector");
  const prompt = await choosePrompt(scene, first);

  const before = await stage.snapshot(first);
  const trials = [await send(scene, first, "cold", "cold", prompt)];
  await waitUntilSaved(scene, first, before, trials[0]?.answer.promptTokens ?? 0);
  trials.push(await send(scene, first, "own", "own hit", prompt));
  await progress.step("empty the engine's own cache", () => first.emptyCache());
  trials.push(await send(scene, first, "restore", "restored", prompt));

  await progress.step("stop the engine and the sidecar; only the vaults stay", async () => {
    await stage.stopEngine(first);
    await stage.stopService(firstSidecar);
  });
  const secondSidecar = await progress.step("start a new sidecar", () => stage.startSidecar());
  const second = await startEngine(scene, "start a new engine");
  await warmUp(scene, second, 2, "first use");
  await warmUp(scene, second, 1, "restored");
  trials.push(await send(scene, second, "restore", "restored, new engine", prompt));
  trials.push(...(await performInt8(scene, second, secondSidecar, prompt)));
  return { trials, engine: second, prompt };
}

/** The same text through a sidecar that stores INT8: it finds nothing that is exact, so the text is computed once more. */
async function performInt8(
  scene: Scene,
  engine: Engine,
  sidecar: Process,
  prompt: string,
): Promise<Trial[]> {
  const { stage, progress } = scene;
  await progress.step("change to a sidecar that stores INT8", async () => {
    await stage.stopService(sidecar);
    await stage.startSidecar("int8");
    await stage.untilRestoring();
    await engine.emptyCache();
  });
  const before = await stage.snapshot(engine);
  const cold = await send(scene, engine, "cold", "cold, INT8 sidecar", prompt, "int8");
  await waitUntilSaved(scene, engine, before, cold.answer.promptTokens);
  await progress.step("empty the engine's own cache", () => engine.emptyCache());
  return [cold, await send(scene, engine, "restore", "restored as INT8", prompt, "int8")];
}

function modelShape({ stage, isQuick }: Scene): ModelShape {
  return {
    kind: "llama",
    seed: SEED,
    ...(isQuick ? QUICK_MODEL : FULL_MODEL),
    vocab: 1024,
    dtype: stage.machine.dtype,
    "max-position": DEMO_MODEL_LEN_MAX,
  };
}

export async function startEngine(
  { stage, progress }: Scene,
  title: string,
  model?: EngineModel,
): Promise<Engine> {
  const engine = stage.startEngine(model);
  await progress.step(title, () => engine.ready(), {
    detail: () => enginePhase(engine.process.log()),
    result: () => `serving at ${engine.url}`,
  });
  return engine;
}

/** What a starting engine is doing, by the last of these lines in its log. */
const PHASES: readonly (readonly [line: string, doing: string])[] = [
  ["", "importing vLLM"],
  ["non-default args", "reading the model's configuration"],
  ["Resolved architecture", "starting the engine core"],
  ["Initializing a V1 LLM engine", "starting the worker"],
  ["Starting to load model", "loading the model"],
  ["init engine (", "opening the server"],
];

export function enginePhase(log: string): string {
  return PHASES.findLast(([line]) => log.includes(line))?.[1] ?? "";
}

/** Warms the first engine up, and takes as much of the text as this machine computes in a time a person will wait. */
async function choosePrompt(scene: Scene, engine: Engine): Promise<string> {
  const { stage, isQuick } = scene;
  const before = await stage.snapshot(engine);
  await warmUp(scene, engine, 0, "first use");
  const { promptTokens, ttftMs } = await warmUp(scene, engine, 1, "computed");
  await waitUntilSaved(scene, engine, before, 2 * promptTokens);
  await engine.emptyCache();
  await warmUp(scene, engine, 1, "restored");
  const targetMs = isQuick ? DEMO_COLD_QUICK_MS : DEMO_COLD_MS;
  return LONG_TEXT.slice(0, promptChars(promptTokens, ttftMs, targetMs));
}

/** One character is one token. */
export function promptChars(warmTokens: number, warmMs: number, targetMs: number): number {
  const possible = Math.round((warmTokens / warmMs) * targetMs);
  return Math.min(Math.max(possible, DEMO_PROMPT_CHARS_MIN), DEMO_PROMPT_CHARS_MAX);
}

/** Sends text that no trial uses, so that neither a computed nor a restored one pays for what is done once. */
function warmUp(
  { progress }: Scene,
  engine: Engine,
  number: number,
  how: string,
): ReturnType<Engine["complete"]> {
  const start = DEMO_PROMPT_CHARS_MAX + number * DEMO_WARMUP_CHARS;
  const text = LONG_TEXT.slice(start, start + DEMO_WARMUP_CHARS);
  const title = `warm up with another text (${how})`;
  return progress.step(title, () => engine.complete(text, 2), {
    result: ({ promptTokens, ttftMs }) =>
      `${showCount(promptTokens)} tokens in ${showSeconds(ttftMs)}`,
  });
}

async function send(
  { stage, progress }: Scene,
  engine: Engine,
  kind: Kind,
  name: string,
  prompt: string,
  codec: Codec = "raw",
): Promise<Trial> {
  const title = `send the long text (${name})`;
  const before = await stage.snapshot(engine);
  const answer = await progress.step(title, () => engine.complete(prompt, DEMO_ANSWER_TOKENS), {
    result: ({ promptTokens, ttftMs }) =>
      `${showCount(promptTokens)} tokens, the first answered after ${showSeconds(ttftMs)}`,
  });
  const moved = movedBetween(before, await stage.snapshot(engine));
  return { name, kind, codec, answer, moved };
}

/** Saves are fire and forget: waits until the vault holds the prompt's full blocks, or gets no more of them. */
export async function waitUntilSaved(
  { stage, progress, signal }: Scene,
  engine: Engine,
  before: VaultState,
  promptTokens: number,
): Promise<void> {
  const wanted = Math.floor(promptTokens / BLOCK_TOKENS);
  let held = 0;
  let after = before;
  const work = async (): Promise<void> => {
    const startedMs = nowMs();
    let grownMs = startedMs;
    while (held < wanted) {
      after = await stage.snapshot(engine);
      const heldNow = after.vaultRecords - before.vaultRecords;
      if (heldNow > held) grownMs = nowMs();
      held = heldNow;
      const isOver =
        nowMs() - startedMs > DEMO_SAVE_WAIT_MS || nowMs() - grownMs > DEMO_SAVE_QUIET_MS;
      if (isOver && held < wanted) return;
      await sleep(DEMO_POLL_MS, signal);
    }
  };
  const progressText = (): string => `${held} of ${wanted} blocks in the vault`;
  await progress.step("wait until the vault holds it", work, {
    detail: progressText,
    result: () => `${progressText()}, ${showBytes(sentBytes(before, after))} sent`,
  });
  if (held > 0) return;
  const reason = "no block of the prompt reached the vault; see the logs of engine and sidecar";
  throw new TierkvError("DEMO_FAILED", { reason });
}

function sentBytes(before: VaultState, after: VaultState): number {
  return (after.sidecar["bytes_sent"] ?? 0) - (before.sidecar["bytes_sent"] ?? 0);
}
