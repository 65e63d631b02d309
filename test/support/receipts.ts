// Owns the parts of receipt tests: a restore behind some tokens of the engine's own, and the command.
import { join } from "node:path";
import { openMachine, PAGE, shapeOf } from "./bundles.ts";
import type { Machine } from "./bundles.ts";
import { runInside } from "./command-line.ts";
import { saveAll } from "./scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "./shim-client.ts";
import type { EngineShape } from "./shim-client.ts";
import { testDirectory } from "./sidecars.ts";
import type { TestSidecarOptions } from "./sidecars.ts";
import { until } from "./vaults.ts";

export const BLOCKS = 70;
export const TOKENS: number = 16 * BLOCKS;
export const NAME = "0f3c5a7e9b1d2f4a6c8e0b2d4f6a8c1e";

export interface Scene extends Machine {
  dir: string;
  /** Engine that restored `BLOCKS` blocks of 16 tokens behind its own first two, of which it had one when it asked. */
  reader: FakeEngine;
}

export async function openScene(
  options: TestSidecarOptions = {},
  receipt: string = NAME,
  more: Partial<EngineShape> = {},
): Promise<Scene> {
  const dir = join(testDirectory(), "receipts");
  const receipts = { dir, ...options.receipts };
  const text = `[receipts]\ndir = "${dir}"\n`;
  const machine = await openMachine(2, { ...options, receipts, more: text });
  const { sidecar } = machine;
  const shape = { ...shapeOf(BLOCKS), ...more };
  const writer = await FakeEngine.start(sidecar.socketPath, { ...shape, engine: "writer" });
  const blocks = makeBlocks("prompt", BLOCKS, PAGE, more.world);
  await saveAll({ engine: writer, sidecar }, blocks);
  writer.close();
  const reader = await FakeEngine.start(sidecar.socketPath, { ...shape, engine: "reader" });
  const asked = { group: 0, class: "kv", hashes: hashesOf(blocks), from: 1 };
  const plan = reader.prefetchGroups([asked], receipt === "" ? {} : { receipt });
  await reader.done(plan);
  reader.release(plan, { tokens: TOKENS - 32, from: 32, load_us: 1000 });
  return { ...machine, dir, reader };
}

export const written = async ({ sidecar }: Scene): Promise<void> =>
  until(() => sidecar.counters.get("receipts_written") === 1, "the receipt to be written");

/** Runs `tierkv verify` inside this process. */
export async function verify(
  { config }: Pick<Machine, "config">,
  ...words: string[]
): Promise<{ exitCode: number | null; stderr: string; result: Record<string, unknown> }> {
  const ran = await runInside(["verify", ...words, "--json", "--config", config]);
  const { exitCode, stdout, stderr } = ran;
  return { exitCode, stderr, result: JSON.parse(stdout || "{}") as Record<string, unknown> };
}
