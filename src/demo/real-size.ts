// Owns the demo's act with the KV of a published model: 16,000 tokens of 128 KiB each, and next to no compute.
import { availableMemory } from "node:process";
import {
  DEMO_REAL_ARENA_BYTES,
  DEMO_REAL_CACHE_GIB,
  DEMO_REAL_MEMORY_BYTES,
  DEMO_REAL_REQUEST_MS,
  DEMO_REAL_VAULT_BYTES,
} from "../limits-tools.ts";
import { DEMO_ANSWER_TOKENS, DEMO_MODEL_LEN_MAX } from "../limits.ts";
import type { EngineModel } from "./engine.ts";
import { showBytes } from "./format.ts";
import { failed } from "./processes.ts";
import type { Kind, Trial } from "./proof.ts";
import { EMPTY_CACHE, LONG_TEXT, saved, send, startEngine, stop } from "./scenario.ts";
import type { Scene } from "./scenario.ts";
import type { Memory } from "./workspace.ts";

/** In python-shim/lab/geometries.py; as published but for its hidden size of 64. */
const GEOMETRY = "llama-3.1-8b";
export const REAL_MEMORY: Memory = {
  arenaBytes: DEMO_REAL_ARENA_BYTES,
  vaultBytes: DEMO_REAL_VAULT_BYTES,
};

/** Throws DEMO_FAILED where the machine has less memory than the act takes: it would swap, and measure that. */
export function checkMemory(freeBytes: number = availableMemory()): void {
  if (freeBytes >= DEMO_REAL_MEMORY_BYTES) return;
  const [needed, free] = [DEMO_REAL_MEMORY_BYTES, freeBytes].map(showBytes);
  throw failed(`--real-size needs ${needed} of memory, ${free} are free; run the demo without it`);
}

/** Computes the long text, restores it, and stops what it started but the vaults. */
export async function atRealSize(scene: Scene): Promise<Trial[]> {
  const { stage, progress } = scene;
  const model: EngineModel = {
    path: stage.workspace.path("real-model"),
    lengthMax: DEMO_MODEL_LEN_MAX,
    cacheGib: DEMO_REAL_CACHE_GIB,
    dtype: "bfloat16",
    requestMs: DEMO_REAL_REQUEST_MS,
  };
  const flags = ["--geometry", GEOMETRY, "--seed", "1", "--dtype", "bfloat16"];
  await progress.step("make a model with the KV of Llama-3.1-8B", () =>
    stage.makeModel(model.path, flags),
  );
  const sidecar = await progress.step("start a sidecar", () => stage.startSidecar());
  const engine = await startEngine(scene, "start vLLM with it", model);
  const ask = (kind: Kind, name: string): Promise<Trial> =>
    send(scene, engine, {
      kind,
      name,
      codec: "raw",
      prompt: LONG_TEXT,
      tokens: DEMO_ANSWER_TOKENS,
    });
  const trials = [await saved(scene, engine, () => ask("cold", "cold"))];
  trials.push(await ask("own", "own hit"));
  await progress.step(EMPTY_CACHE, () => engine.emptyCache());
  trials.push(await ask("restore", "restored"));
  await stop(scene, engine, sidecar);
  return trials;
}
