// Owns the demo's requests to the trained model: one text continued from computed, exact and INT8 blocks.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { DEMO_READ_CHARS, DEMO_READ_LEN_MAX, DEMO_READ_TOKENS } from "../limits-tools.ts";
import type { Answer, Engine } from "./engine.ts";
import { movedBetween } from "./proof.ts";
import type { Reading } from "./reading.ts";
import { startEngine, waitUntilSaved } from "./scenario.ts";
import type { Scene } from "./scenario.ts";
import type { Codec } from "./workspace.ts";

// src and dist lie equally deep.
const MODEL = fileURLToPath(new URL("../../bench/fidelity/model", import.meta.url));
/** Python that the model has not seen. */
const TEXT = fileURLToPath(new URL("../../python-shim/lab/tokenizer.py", import.meta.url));

/** Has the trained model read a text, restores what it computed in both ways, and stops what it started but the vaults. */
export async function readAloud(scene: Scene): Promise<Reading[]> {
  const { stage, progress } = scene;
  const prompt = readFileSync(TEXT, "utf8").slice(0, DEMO_READ_CHARS);
  let sidecar = await progress.step("start a sidecar", () => stage.startSidecar());
  const model = { path: MODEL, lengthMax: DEMO_READ_LEN_MAX };
  const engine = await startEngine(scene, "start vLLM with a small trained model", model);
  const exact = await readTwice(scene, engine, prompt, "raw");
  sidecar = await progress.step("change to a sidecar that stores INT8", async () => {
    await stage.stopService(sidecar);
    const next = await stage.startSidecar("int8");
    await stage.untilRestoring();
    await engine.emptyCache();
    return next;
  });
  const lossy = await readTwice(scene, engine, prompt, "int8");
  await progress.step("stop the engine and the sidecar; only the vaults stay", async () => {
    await stage.stopEngine(engine);
    await stage.stopService(sidecar);
  });
  return [...exact, ...lossy.filter(({ codec }) => codec !== null)];
}

/** Computes the text's continuation, and makes it again from what the vault holds of the text. */
async function readTwice(
  scene: Scene,
  engine: Engine,
  prompt: string,
  codec: Codec,
): Promise<Reading[]> {
  const { stage, progress } = scene;
  const before = await stage.snapshot(engine);
  const computed = await progress.step("have it go on with a text", () => ask(engine, prompt));
  await waitUntilSaved(scene, engine, before, computed.promptTokens);
  // The engine's own hit computes the same rest of the prompt as a restore does.
  const own = await ask(engine, prompt);
  await engine.emptyCache();
  const emptied = await stage.snapshot(engine);
  const restored = await progress.step("have it go on again (restored)", () => ask(engine, prompt));
  const moved = movedBetween(emptied, await stage.snapshot(engine));
  return [reading(null, own, own), { ...reading(codec, restored, own), ...brought(moved) }];
}

function ask(engine: Engine, prompt: string): Promise<Answer> {
  return engine.complete(prompt, DEMO_READ_TOKENS);
}

function brought({
  restoredTokens,
  fetchedBytes,
}: ReturnType<typeof movedBetween>): Pick<Reading, "restoredTokens" | "fetchedBytes"> {
  return { restoredTokens, fetchedBytes };
}

function reading(codec: Codec | null, answer: Answer, own: Answer): Reading {
  const apart = own.tokenIds.findIndex((id, index) => id !== answer.tokenIds[index]);
  return {
    codec,
    promptTokens: answer.promptTokens,
    restoredTokens: 0,
    fetchedBytes: 0,
    text: answer.text,
    tokens: answer.tokenIds.length,
    tokensAlike: apart === -1 ? own.tokenIds.length : apart,
  };
}
