// Owns the proof that a restore comes from the place behind a store that does not answer.
import { expect, test } from "vitest";
import { TIER_KEYS_MIN } from "../../../src/base/limits/cold.ts";
import { Tiers } from "../../../src/client/cold/tiers.ts";
import { TestClient } from "../../support/record-client.ts";
import { expectNoLeak, saveAll } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { openSidecar } from "../../support/sidecars.ts";
import { closeAfterTest, logger, openVault } from "../../support/vaults.ts";

const PAGE = 4096;

test("F193 while the first place is gone, all blocks come from the place behind it", async () => {
  const [first, second] = [await openVault(), await openVault()];
  const client = ({ address }: { address: string }): TestClient =>
    new TestClient({ address, name: "kv", logger });
  const tiers = closeAfterTest(new Tiers(client(first), client(second), logger));
  const sidecar = await openSidecar({ vaults: { kv: tiers, ssm: null }, when: "always" });
  const engine = await FakeEngine.start(sidecar.socketPath);
  const scene = { sidecar, engine };
  const blocks = makeBlocks("a", TIER_KEYS_MIN * 2, PAGE);
  await saveAll(scene, blocks);
  await first.close();
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  engine.release(view.plan);
  expect([view.reason, view.placed.get(0)?.length]).toEqual(["complete", blocks.length]);
  await expectNoLeak(scene);
});
