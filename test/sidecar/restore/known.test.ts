// Owns the proof of short restores without a look-up: only of blocks stored here, and honest where the vault dropped them.
import { expect, test } from "vitest";
import { KNOWN_BLOCKS_MAX } from "../../../src/base/limits/general.ts";
import type { Account } from "../../../src/sidecar/trace/decisions.ts";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import type { Scene } from "../../support/scene.ts";
import { hashesOf, helloFrame, makeBlocks, ShimClient } from "../../support/shim-client.ts";
import { MIB } from "../../support/vaults.ts";

const PAGE = 8192;

/** The first answer opens the connection, so it says nothing about later ones. */
async function learnPace({ engine, vault }: Scene): Promise<void> {
  for (const name of ["first", "second"]) {
    const view = await engine.done(engine.prefetch(hashesOf(makeBlocks(name, 1, PAGE))));
    expect(view.reason).toBe("end_of_hit");
    engine.release(view.plan);
  }
  expect(vault.counters.get("lookups")).toBe(2);
}

test("blocks stored here are fetched at once; longer prompts, and partly held ones, are looked up", async () => {
  const scene = await openScene();
  const { engine, vault, sidecar } = scene;
  const blocks = makeBlocks("known", KNOWN_BLOCKS_MAX + 1, PAGE);
  await saveAll(scene, blocks);
  await learnPace(scene);
  const lookupsOf = async (count: number, from = 0): Promise<number> => {
    const before = vault.counters.get("lookups");
    const view = await engine.done(engine.prefetch(hashesOf(blocks.slice(0, count)), from));
    expect(view).toMatchObject({ reason: "complete" });
    expect(engine.holds(view, count - 1 - from, blocks[count - 1]!)).toBe(true);
    engine.release(view.plan);
    return vault.counters.get("lookups") - before;
  };
  expect(await lookupsOf(3)).toBe(0);
  expect(sidecar.counters.get("lookup_hits")).toBe(3);
  expect(await lookupsOf(5, 4)).toBe(1);
  expect(await lookupsOf(KNOWN_BLOCKS_MAX)).toBe(0);
  expect(await lookupsOf(KNOWN_BLOCKS_MAX + 1)).toBe(1);
  await expectNoLeak(scene);
});

test("the engine is told that blocks dropped by the vault are not held", async () => {
  const scene = await openScene({ vaultBytes: MIB });
  const { engine, sidecar } = scene;
  const dropped = makeBlocks("dropped", 1, PAGE);
  await saveAll(scene, dropped);
  await saveAll(scene, makeBlocks("others", 250, PAGE));
  const kept = makeBlocks("kept", 2, PAGE);
  await saveAll(scene, kept);
  await learnPace(scene);
  const view = await engine.done(engine.prefetch(hashesOf([...kept, ...dropped])));
  expect(view.reason).toBe("end_of_hit");
  expect(view.placed.get(0)).toHaveLength(2);
  const held = engine.scheduler.got("held").at(-1)!;
  expect(held).toMatchObject({ plan: view.plan, tokens: 32 });
  expect(held["groups"]).toEqual([{ group: 0, held: Buffer.of(0b11) }]);
  expect(engine.scheduler.got("done").at(-1)).toMatchObject({ why: "evicted" });
  engine.release(view.plan);

  const none = await engine.done(engine.prefetch(hashesOf(dropped)));
  expect(none.reason).toBe("end_of_hit");
  expect(engine.scheduler.got("done").at(-1)).toMatchObject({ why: "evicted" });
  engine.release(none.plan);
  expect(sidecar.counters.get("lookup_keys")).toBe(2 + 3 + 1);
  expect(sidecar.counters.get("lookup_hits")).toBe(2);
  const client = new ShimClient(sidecar.socketPath);
  client.send(helloFrame({ role: "status" }));
  client.send({ t: "explain", req: "", most: 1 });
  const { accounts } = (await client.wait("explain_reply")) as unknown as { accounts: Account[] };
  expect(accounts[0]).toMatchObject({ why: "nothing_held", miss: "evicted", heldTokens: 0 });
  client.close();
  await expectNoLeak(scene);
});
