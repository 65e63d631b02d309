// Owns the proof that under a distrusted name nothing is restored or saved, by any engine, until it is flushed.
import { expect, test } from "vitest";
import { toNamespace } from "../../../src/base/block.ts";
import { QUARANTINED_MAX } from "../../../src/base/limits/truth.ts";
import { Quarantine } from "../../../src/sidecar/vaults/quarantine.ts";
import { openScene, saveAll } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { openClient, SOON_MS, until } from "../../support/vaults.ts";

const PAGE = 8192;

test("F69 blocks that an engine distrusts are used by no engine of that name, and a flush ends it", async () => {
  const scene = await openScene();
  const { engine, sidecar, vault } = scene;
  const blocks = makeBlocks("a", 6, PAGE);
  await saveAll(scene, blocks);
  const naming = { percent: 100, refused: "block 5 differs", distrusted: 1 };
  engine.scheduler.send({ t: "counts", counters: {}, naming });
  await until(() => sidecar.counters.get("namespaces_quarantined") === 1, "the quarantine");
  expect(sidecar.status().engines[0]!.naming.distrusted).toBe(true);
  const beside = await FakeEngine.start(sidecar.socketPath, { engine: "beside" });
  for (const each of [engine, beside]) {
    const view = await each.done(each.prefetch(hashesOf(blocks)));
    expect([view.placed.size, view.reason]).toEqual([0, "quarantined"]);
  }
  beside.save(makeBlocks("b", 2, PAGE));
  await until(() => sidecar.counters.get("dropped_quarantined") === 2, "the refusals");
  const admin = openClient(vault);
  const next = (): Promise<string | null> =>
    beside.done(beside.prefetch(hashesOf(blocks))).then(({ reason }) => reason);
  const flushTenant = async (): Promise<boolean> => {
    const { sidecars } = await admin.flush(null, SOON_MS, null, null, 5);
    return sidecars.some(({ confirmed }) => confirmed);
  };
  await until(flushTenant, "the sidecar to hear of a tenant's flush");
  expect(await next()).toBe("quarantined");
  await admin.flush(null, SOON_MS);
  await until(async () => (await next()) === "end_of_hit", "the end of the quarantine");
});

test("names beyond the limit push out the oldest", () => {
  const quarantine = new Quarantine();
  const name = (number: number): ReturnType<typeof toNamespace> =>
    toNamespace(Buffer.alloc(32).fill(`n${number} `));
  expect(quarantine.has(name(0))).toBe(false);
  for (let number = 0; number <= QUARANTINED_MAX; number += 1) {
    expect(quarantine.add(name(number))).toBe(true);
  }
  expect(quarantine.add(name(1))).toBe(false);
  expect([0, 1, QUARANTINED_MAX].map((number) => quarantine.has(name(number)))).toEqual([
    false,
    true,
    true,
  ]);
  quarantine.lift((namespace) => namespace.equals(name(1)));
  expect(quarantine.has(name(1))).toBe(false);
});
