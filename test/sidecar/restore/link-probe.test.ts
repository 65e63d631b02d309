// Owns the proof that a recovered link is detected beside requests that do without it.
import { expect, test, vi } from "vitest";
import { openScene, saveAll } from "../../support/scene.ts";
import { hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { until } from "../../support/vaults.ts";

vi.mock("../../../src/base/limits/cost.ts", async (load) => ({
  ...(await load<object>()),
  LINK_STALE_MS: 50,
}));

const PAGE = 4096;
const SLOW_BYTES_PER_S = 2_000;
const FAST_BYTES_PER_S = 1_000_000_000;

test("a link that recovered is probed beside a request that computes, and used by those after it", async () => {
  const scene = await openScene();
  const { engine, sidecar, proxy } = scene;
  const known = makeBlocks("known", 1, PAGE);
  const wanted = makeBlocks("wanted", 60, PAGE);
  await saveAll(scene, [...known, ...wanted]);
  const restore = async (blocks: typeof known): ReturnType<typeof engine.done> => {
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    engine.release(view.plan);
    return view;
  };
  proxy.set({ bytesPerSecond: SLOW_BYTES_PER_S });
  expect((await restore(known)).reason).toBe("complete");
  const steps = [64, 128, 256].map((tokens) => [tokens, (tokens * tokens) / 2, tokens * 10_000]);
  engine.workers[0]!.send({ t: "counts", counters: { told: 1 }, steps });
  await until(() => sidecar.counters.get("shim_told") === 1, "the steps to be learned");
  expect((await restore(wanted)).reason).toBe("slower");

  proxy.set({ bytesPerSecond: FAST_BYTES_PER_S });
  let reason: unknown = null;
  await until(async () => {
    ({ reason } = await restore(wanted));
    return reason === "complete";
  }, "the link to be believed again");
});
