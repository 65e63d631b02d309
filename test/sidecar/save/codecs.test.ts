// Owns the proof that the configured codec reaches the vault: INT8, turned or not, or lossless; states and uncodable blocks stay raw.
import { expect, test } from "vitest";
import type { KvCodec } from "../../../src/config/config.ts";
import { chooseCodecs } from "../../../src/sidecar/save/codecs.ts";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks, makeGroup } from "../../support/shim-client.ts";
import { openStack } from "../../support/sidecars.ts";
import { until } from "../../support/vaults.ts";

const HEADER = 192;
/** Block of makeGroup: 2 layers, 2 heads, 16 tokens, K and V of 32 elements in bf16. */
const DIM = 32;
const TOKENS = 16;
/** A scale is rounded to bf16, and codes are computed in float32. */
const ROUNDED = (1 + 2 ** -8) * (1 + 2 ** -14);
const VECTORS = 2 * 2 * 16 * 2;
const PAGE = VECTORS * DIM * 2;
/** Bytes for each head of K and V in each layer: the first exponent, and 177 bytes for 128 elements. */
const LOSSLESS = 2 * 2 * 2 * (1 + ((16 * DIM) / 128) * 177);
const INT8_RECORD = HEADER + VECTORS * (2 + DIM);
/** A mean for each head of K in each layer; of the first block, each head's first vectors of K and V. */
const MEANS = 2 * 2 * (2 + DIM);
const EXACT = 2 * 2 * 2 * DIM * 2;

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

test.each<[enabled: boolean | null, kv: KvCodec, name: string, id: number, fidelity: number]>([
  [null, "auto", "raw", 0, 0],
  [true, "auto", "int8-mean-had", 4, 4],
  [false, "auto", "raw", 0, 0],
  [null, "raw", "raw", 0, 0],
  [null, "lossless", "lossless", 1, 0],
  [false, "lossless", "lossless", 1, 0],
  [true, "int8", "int8", 2, 2],
  [null, "int8-mean-had", "int8-mean-had", 4, 4],
])("enabled = %s with kv = %s is %s", (enabled, kv, kvName, id, fidelity) => {
  const chosen = chooseCodecs({ codec: { kv }, turboQuant: { enabled } });
  expect(chosen).toMatchObject({ kvName, fidelity, byClass: { kv: id, ssm: 0 } });
});

/** Returns the powers of a vector's elements, and of their errors. */
function squares(values: Iterable<number>): number {
  return [...values].reduce((sum, value) => sum + value ** 2, 0);
}

const length = (vector: Float32Array): number => Math.sqrt(squares(vector));

/**
 * Returns the most that one element of each coded vector can be off. A transform keeps a vector's length, so no element of the
 * result is longer; K loses a mean of 16 tokens, which is no longer than the longest of them, and its own rounding.
 */
function turnedSteps(page: readonly Float32Array[]): number[] {
  return page.map((vector, at) => {
    const head = at - (at % (2 * TOKENS));
    const tokens = page.slice(head, head + 2 * TOKENS).filter((_, other) => other % 2 === 0);
    const mean = at % 2 === 0 ? Math.max(...tokens.map(length)) * (1 + DIM / 127) : 0;
    return ((length(vector) + mean) / 127) * ROUNDED;
  });
}

test.each(["int8", "int8-mean-had"] as const)(
  "attention goes and comes back as %s, each vector within its bound",
  async (kv) => {
    const scene = await openScene({ kv });
    const { engine, sidecar } = scene;
    const blocks = makeBlocks(kv, 3, PAGE);
    for (const { pages } of blocks) pages.forEach(makeFinite);
    await saveAll(scene, blocks);
    const more = kv === "int8" ? 0 : 3 * MEANS + EXACT;
    expect(sidecar.counters.get("bytes_sent")).toBe(3 * INT8_RECORD + more);
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(view.reason).toBe("complete");
    for (const [index, block] of blocks.entries()) {
      expect(engine.holds(view, index, block)).toBe(false);
      const slot = view.placed.get(0)![index]!;
      const restored = vectors(engine.workers[0]!.readSlot(slot, PAGE));
      const originals = vectors(block.pages[0]!);
      const turned = turnedSteps(originals);
      for (const [at, original] of originals.entries()) {
        const errors = original.map((x, i) => x - restored[at]![i]!);
        const step = (Math.max(...original.map(Math.abs)) / 127) * ROUNDED;
        // Only for the unturned codec, because a turn spreads errors over the vector; it keeps the sum of squares.
        if (kv === "int8") expect(Math.max(...errors.map(Math.abs))).toBeLessThanOrEqual(step);
        // Half a step of the code, and half a bit of the bf16 that the engine gets.
        const most = Math.sqrt(DIM) * (turned[at]! / 2) + length(original) * 2 ** -8;
        const isFirst = index === 0 && at % (2 * TOKENS) < 2;
        if (kv === "int8") expect(squares(errors)).toBeLessThanOrEqual(DIM * step ** 2);
        else if (isFirst) expect(squares(errors), "the first token is exact").toBe(0);
        else expect(Math.sqrt(squares(errors)), `vector ${at}`).toBeLessThanOrEqual(most);
      }
    }
    engine.release(view.plan);
    await expectNoLeak(scene);
  },
);

/** Leaves two exponent values for every bf16. */
function makeCalm(page: Buffer): void {
  for (let at = 1; at < page.length; at += 2) page[at] = (page[at]! & 0x80) | 0x3f;
}

test("lossless blocks take fewer bytes and come back bit for bit, noise as it is", async () => {
  const scene = await openScene({ kv: "lossless" });
  const { engine, sidecar } = scene;
  const blocks = makeBlocks("lossless", 4, PAGE);
  for (const { pages } of blocks.slice(1)) pages.forEach(makeCalm);
  const names = ["bytes_sent", "blocks_encoded_ahead"] as const;
  const before = names.map((name) => sidecar.counters.get(name));
  await saveAll(scene, blocks);
  const [sent, ahead] = names.map((name, at) => sidecar.counters.get(name) - before[at]!);
  expect(sent).toBe(4 * HEADER + PAGE + 3 * LOSSLESS);
  expect(ahead, "none as a deferred record").toBe(4);
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(view.reason).toBe("complete");
  for (const [index, block] of blocks.entries()) {
    expect(engine.holds(view, index, block)).toBe(true);
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
