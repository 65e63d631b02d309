// Owns the proof that the configured codec is what reaches the vault: attention as INT8, state and what has no codes as they are.
import { expect, test } from "vitest";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks, makeGroup } from "../../support/shim-client.ts";
import { openStack } from "../../support/sidecars.ts";
import { until } from "../../support/vaults.ts";

const HEADER = 192;
/** makeGroup's block: 2 layers, 2 heads, 16 tokens, K and V of 32 elements in bf16. */
const DIM = 32;
const VECTORS = 2 * 2 * 16 * 2;
const PAGE = VECTORS * DIM * 2;
const INT8_RECORD = HEADER + VECTORS * (2 + DIM);

/** Clears the exponent's highest bit of every bf16: no inf, no NaN, nothing above 2. */
function makeFinite(page: Buffer): void {
  for (let at = 1; at < page.length; at += 2) page[at] = page[at]! & 0xbf;
}

function vectors(page: Buffer): Float32Array[] {
  return Array.from({ length: VECTORS }, (_, vector) =>
    Float32Array.from({ length: DIM }, (_unused, element) => {
      const bits = Buffer.alloc(4);
      page.copy(bits, 2, (vector * DIM + element) * 2, (vector * DIM + element) * 2 + 2);
      return bits.readFloatLE();
    }),
  );
}

test("attention goes and comes back as INT8, each element within a step of its vector's scale", async () => {
  const scene = await openScene({ int8: true });
  const { engine, sidecar } = scene;
  const blocks = makeBlocks("int8", 3, PAGE);
  for (const { pages } of blocks) pages.forEach(makeFinite);
  await saveAll(scene, blocks);
  expect(sidecar.counters.get("bytes_sent")).toBe(3 * INT8_RECORD);
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(view.reason).toBe("complete");
  for (const [index, block] of blocks.entries()) {
    expect(engine.holds(view, index, block)).toBe(false);
    const slot = view.placed.get(0)![index]!;
    const restored = vectors(engine.workers[0]!.readSlot(slot, PAGE));
    for (const [at, original] of vectors(block.pages[0]!).entries()) {
      const absmax = Math.max(...original.map(Math.abs));
      const step = (absmax / 127) * (1 + 2 ** -8) * (1 + 2 ** -14);
      const error = Math.max(...original.map((x, i) => Math.abs(x - restored[at]![i]!)));
      expect(error).toBeLessThanOrEqual(step);
    }
  }
  engine.release(view.plan);
  await expectNoLeak(scene);
});

test("a block with a NaN is stored as it is, and comes back bit for bit", async () => {
  const scene = await openScene({ int8: true });
  const { engine, sidecar } = scene;
  const blocks = makeBlocks("nan", 1, PAGE);
  const [page] = blocks[0]!.pages;
  makeFinite(page!);
  page!.writeUInt16LE(0x7fc1, 500);
  await saveAll(scene, blocks);
  expect(sidecar.counters.get("bytes_sent")).toBe(HEADER + PAGE);
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(engine.holds(view, 0, blocks[0]!)).toBe(true);
});

test("an opaque page, which has no vectors, is stored as it is", async () => {
  const group = { ...makeGroup(), layout: "opaque", dtype: "u8" };
  const scene = await openScene({ int8: true }, { groups: [group] });
  const { engine, sidecar } = scene;
  const blocks = makeBlocks("opaque", 2, PAGE);
  await saveAll(scene, blocks);
  expect(sidecar.counters.get("bytes_sent")).toBe(2 * (HEADER + PAGE));
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  for (const index of [0, 1]) expect(engine.holds(view, index, blocks[index]!)).toBe(true);
});

test("recurrent state stays exact beside INT8 attention", async () => {
  const { sidecar, ssm } = await openStack({ int8: true });
  const group = makeGroup({ group: 1, class: "ssm", tail: 0 });
  const engine = await FakeEngine.start(sidecar.socketPath, { groups: [makeGroup(), group] });
  const blocks = makeBlocks("state", 2, PAGE);
  engine.save(blocks, 1);
  await until(() => ssm.counters.get("stored") === 2, "the states to be stored");
  expect(ssm.counters.get("stored_bytes")).toBe(2 * (HEADER + PAGE));
  const view = await engine.done(engine.prefetch(hashesOf(blocks), 0, 1));
  for (const index of [0, 1]) expect(engine.holds(view, index, blocks[index]!, 1)).toBe(true);
});
