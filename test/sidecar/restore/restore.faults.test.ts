// Owns the proof of restores with bad records or vaults: nothing wrong is placed, earlier blocks count, nothing hangs.
import { describe, expect, test, vi } from "vitest";
import { countBits, packKeys } from "../../../src/base/block.ts";
import type * as Limits from "../../../src/base/limits/general.ts";
import { VaultClient } from "../../../src/client/vault/vault-client.ts";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import { hashesOf, makeBlocks, makeGroup } from "../../support/shim-client.ts";
import { corruptStored } from "../../support/sidecars.ts";
import { openClient, SOON_MS, until } from "../../support/vaults.ts";

// Small windows, so that a fetch of a few MiB takes several on any machine.
vi.mock("../../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  FETCH_WINDOW_BYTES: 2 ** 20,
}));

const PAGE = 8192;

describe("bad records", () => {
  test("F9 a corrupted record ends the hit before it, is counted, and the vault drops its copy", async () => {
    const scene = await openScene();
    const { engine, sidecar, vault } = scene;
    const blocks = makeBlocks("bad", 8, PAGE);
    await saveAll(scene, blocks);
    corruptStored(engine.namespace, packKeys(blocks[5]!.hash, 0, 0), 4000);
    const plan = engine.prefetch(hashesOf(blocks));
    const view = await engine.done(plan);
    expect(view.reason).toBe("bad_record");
    expect(view.placed.get(0)).toHaveLength(5);
    expect(sidecar.counters.get("bad_records")).toBe(1);
    const client = openClient(vault);
    const quarantined = async (): Promise<number> =>
      (await client.stats(5000)).counters["quarantined"] ?? 0;
    await until(async () => (await quarantined()) === 1, "the quarantine");
    engine.release(plan);
    await expectNoLeak(scene);
    const again = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(again.reason).toBe("end_of_hit");
    expect(countBits(again.held!, 8)).toBe(7);
  });

  test("a record damaged on the way is refused; the vault's good copy stays and serves the next plan", async () => {
    const scene = await openScene();
    const { engine, sidecar, vault, proxy } = scene;
    const blocks = makeBlocks("wire", 6, PAGE);
    await saveAll(scene, blocks);
    proxy.set({ corruptAt: 1 });
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(proxy.counts().corrupted).toBe(1);
    expect(view.reason).toBe("bad_record");
    proxy.set({});
    await until(() => vault.counters.get("reports") === 1, "the report");
    expect((await openClient(vault).stats(5000)).counters["quarantined"]).toBe(0);
    engine.release(view.plan);
    const again = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(again.reason).toBe("complete");
    for (const [index, block] of blocks.entries()) {
      expect(engine.holds(again, index, block)).toBe(true);
    }
    expect(sidecar.counters.get("bad_records")).toBe(1);
  });

  test("F11 whole, valid records under each other's item number are refused", async () => {
    const scene = await openScene();
    const { engine, sidecar, proxy } = scene;
    const blocks = makeBlocks("swap", 6, PAGE);
    await saveAll(scene, blocks);
    proxy.set({ swapAt: 1 });
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(proxy.counts().swapped).toBeGreaterThan(0);
    expect(view.reason).toBe("bad_record");
    expect(sidecar.counters.get("bad_records")).toBeGreaterThan(0);
    for (const [index] of (view.placed.get(0) ?? []).entries()) {
      expect(engine.holds(view, index, blocks[index]!)).toBe(true);
    }
  });
});

describe("vaults that fail", () => {
  test("a vault that hangs during a fetch ends the plan long before its deadline", async () => {
    const scene = await openScene({ stallMs: 1000 }, { groups: [makeGroup({ layers: 64 })] });
    const { engine, proxy } = scene;
    const page = 64 * 4096;
    const blocks = makeBlocks("stall", 20, page);
    await saveAll(scene, blocks);
    // Late enough that the first window has come, whichever lane brings which piece.
    proxy.set({ hangAt: 14 });
    const plan = engine.prefetch(hashesOf(blocks));
    const view = await engine.done(plan);
    expect(proxy.counts().hung).toBe(1);
    expect(view.reason).toBe("vault_down");
    // Blocks placed before the fault are good.
    const count = view.placed.get(0)?.length ?? 0;
    expect(count).toBeGreaterThan(0);
    expect(count).toBeLessThan(20);
    for (let index = 0; index < count; index += 1) {
      expect(engine.holds(view, index, blocks[index]!)).toBe(true);
    }
    engine.release(plan);
    await expectNoLeak(scene);
  });

  test("a vault that resets its connections during a fetch: the rest comes over new lanes", async () => {
    const scene = await openScene({}, { groups: [makeGroup({ layers: 64 })] });
    const { engine, proxy, sidecar } = scene;
    const blocks = makeBlocks("reset", 20, 64 * 4096);
    await saveAll(scene, blocks);
    proxy.set({ dropAt: 6 });
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(proxy.counts().dropped).toBe(1);
    expect(view.reason).toBe("complete");
    for (const [index, block] of blocks.entries()) {
      expect(engine.holds(view, index, block)).toBe(true);
    }
    expect(sidecar.counters.get("vault_errors")).toBe(0);
    engine.release(view.plan);
    await expectNoLeak(scene);
  });

  test("a slow vault: the plan ends at its deadline with the blocks placed so far", async () => {
    const scene = await openScene(
      { stallMs: 3000, waitMs: 1500 },
      { groups: [makeGroup({ layers: 64 })] },
    );
    const { engine, proxy } = scene;
    const blocks = makeBlocks("slow", 40, 64 * 4096);
    await saveAll(scene, blocks);
    proxy.set({ delayMs: 100 });
    const plan = engine.prefetch(hashesOf(blocks));
    const view = await engine.done(plan);
    expect(view.reason).toBe("deadline");
    expect((view.placed.get(0) ?? []).length).toBeLessThan(40);
    engine.release(plan);
    await expectNoLeak(scene);
  });

  test("a dead vault: no hit, at once, and the next plans do not wait for it either", async () => {
    const scene = await openScene({ waitMs: SOON_MS });
    const { engine, vault, proxy } = scene;
    const blocks = makeBlocks("dead", 4, PAGE);
    await saveAll(scene, blocks);
    await proxy.close();
    await vault.close();
    for (let round = 0; round < 3; round += 1) {
      const startMs = performance.now();
      const view = await engine.done(engine.prefetch(hashesOf(blocks)));
      expect(view.reason).toBe("vault_down");
      expect(view.placed.size).toBe(0);
      expect(performance.now() - startMs).toBeLessThan(SOON_MS / 2);
    }
  });

  test("F30 records evicted between look-up and fetch end the hit", async () => {
    // Watching is broken, because otherwise the flush would be announced; evictions are not.
    const deaf = vi.spyOn(VaultClient.prototype, "watch").mockRejectedValue(new Error("deaf"));
    const scene = await openScene();
    const { engine, vault, proxy } = scene;
    const blocks = makeBlocks("gone", 4, PAGE);
    await saveAll(scene, blocks);
    proxy.set({ delayMs: 100 });
    const plan = engine.prefetch(hashesOf(blocks));
    await engine.scheduler.wait("held");
    await openClient(vault).flush(null, 2000);
    const view = await engine.done(plan);
    expect(["end_of_hit", "complete"]).toContain(view.reason);
    expect(vault.counters.get("fetch_missing") > 0).toBe(view.reason === "end_of_hit");
    deaf.mockRestore();
  });
});
