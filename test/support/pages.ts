// Owns a sidecar for tests of the page: one restore of 320 tokens at a second each, and one miss.
import { openScene, saveAll } from "./scene.ts";
import type { Scene } from "./scene.ts";
import { hashesOf, makeBlocks } from "./shim-client.ts";
import { until } from "./vaults.ts";

const PAGE = 1024;
const BLOCKS = 20;

export async function openRestored(): Promise<Scene> {
  const scene = await openScene();
  const { engine, sidecar } = scene;
  const blocks = makeBlocks("a", BLOCKS, PAGE);
  await saveAll(scene, blocks);
  const steps = [64, 128, 256].map((tokens) => [tokens, (tokens * tokens) / 2, tokens * 1_000_000]);
  engine.workers[0]!.send({ t: "counts", counters: { told: 1 }, steps });
  await until(() => sidecar.counters.get("shim_told") > 0, "the steps to be heard");
  await restoreAgain(scene);
  await engine.done(engine.prefetch(hashesOf(makeBlocks("unknown", 2, PAGE))));
  return scene;
}

/** Restores the same blocks again, which now come from shared memory. */
export async function restoreAgain({ engine, sidecar }: Scene): Promise<void> {
  const before = sidecar.status().ledger.restores;
  const asked = engine.prefetch(hashesOf(makeBlocks("a", BLOCKS, PAGE)));
  const { plan } = await engine.done(asked);
  engine.scheduler.send({ t: "release", req: "request", plan, tokens: 320, load_us: 2000 });
  await until(() => sidecar.status().ledger.restores === before + 1, "the ledger");
}
