// Owns the demo's act with the KV of a published model: up to 16,000 tokens of 128 KiB each, and next to no compute.
import { availableMemory } from "node:process";
import { DEMO_ANSWER_TOKENS, DEMO_MODEL_LEN_MAX } from "../../base/limits/general.ts";
import {
  DEMO_REAL_ARENA_BYTES,
  DEMO_REAL_CACHE_GIB,
  DEMO_REAL_COLD_MS,
  DEMO_REAL_MEMORY_BYTES,
  DEMO_REAL_VAULT_BYTES,
  DEMO_REAL_WARMUP_CHARS,
} from "../../base/limits/tools.ts";
import type { Answer, Engine, EngineModel } from "../stand/engine.ts";
import { failed } from "../stand/processes.ts";
import type { Memory } from "../stand/workspace.ts";
import { showBytes } from "./format.ts";
import type { Trial } from "./proof.ts";
import { LONG_TEXT, saved, send, startEngine, stop, threeWays } from "./scenario.ts";
import type { Scene } from "./scenario.ts";

/** From python-shim/lab/geometries.py; as published, except for a hidden size of 64. */
const GEOMETRY = "llama-3.1-8b";
export const REAL_MEMORY: Memory = {
  arenaBytes: DEMO_REAL_ARENA_BYTES,
  vaultBytes: DEMO_REAL_VAULT_BYTES,
};

/** Throws DEMO_FAILED where memory is too small for the act, because swapping would falsify its times. */
export function checkMemory(freeBytes: number = availableMemory()): void {
  if (freeBytes >= DEMO_REAL_MEMORY_BYTES) return;
  const [needed, free] = [DEMO_REAL_MEMORY_BYTES, freeBytes].map(showBytes);
  throw failed(`--real-size needs ${needed} of memory, ${free} are free; run the demo without it`);
}

/** Computes the long text, restores it, and stops everything it started except the vaults. */
export async function atRealSize(scene: Scene): Promise<Trial[]> {
  const { stage, progress } = scene;
  const model: EngineModel = {
    path: stage.workspace.path("real-model"),
    lengthMax: DEMO_MODEL_LEN_MAX,
    cacheGib: DEMO_REAL_CACHE_GIB,
    dtype: "bfloat16",
  };
  const flags = ["--geometry", GEOMETRY, "--seed", "1", "--dtype", "bfloat16"];
  await progress.step("make a model with the KV of Llama-3.1-8B", () =>
    stage.makeModel(model.path, flags),
  );
  const sidecar = await progress.step("start a sidecar", () => stage.startSidecar());
  const engine = await startEngine(scene, "start vLLM with it", model);
  const prompt = await choosePrompt(scene, engine);
  const of = { codec: "raw", prompt, tokens: DEMO_ANSWER_TOKENS } as const;
  const trials = await threeWays(scene, engine, (kind, name) =>
    send(scene, engine, { kind, name, ...of }),
  );
  await stop(scene, engine, sidecar);
  return trials;
}

/** Warms the engine up, and chooses as much text as this machine computes in a bearable time. */
async function choosePrompt(scene: Scene, engine: Engine): Promise<string> {
  const warmUp = async (text: string, how: string): Promise<Answer> => {
    const trial = { kind: "cold", name: how, codec: "raw", prompt: text, tokens: 2 } as const;
    return (await saved(scene, engine, () => send(scene, engine, trial))).answer;
  };
  const start = LONG_TEXT.slice(0, 2 * DEMO_REAL_WARMUP_CHARS);
  const other = Array.from(start).toReversed().join("");
  await warmUp(other.slice(0, DEMO_REAL_WARMUP_CHARS), "another one, first use");
  const { ttftMs } = await warmUp(other.slice(DEMO_REAL_WARMUP_CHARS), "another one, computed");
  return LONG_TEXT.slice(0, realChars(ttftMs));
}

/** Attention dominates here, so time grows with the square of the length. */
export function realChars(warmMs: number): number {
  const possible = Math.round(DEMO_REAL_WARMUP_CHARS * Math.sqrt(DEMO_REAL_COLD_MS / warmMs));
  return Math.min(Math.max(possible, DEMO_REAL_WARMUP_CHARS), LONG_TEXT.length);
}
