// Owns the proof of `[codec] kv = "auto"`: chosen by time over each vault's link, within the bound, shown in status and explain.
import { expect, test } from "vitest";
import { describe as explained } from "../../../src/cli/commands/explain.ts";
import { showForm } from "../../../src/cli/form.ts";
import type { Vault } from "../../../src/client/vault.ts";
import type { Link } from "../../../src/cost/link.ts";
import type { ArenaId, GeometryId } from "../../../src/native.ts";
import { chooseForm, CodecChoice } from "../../../src/sidecar/save/codec-choice.ts";
import type { Weights } from "../../../src/sidecar/save/codec-choice.ts";
import { chooseCodecs } from "../../../src/sidecar/save/codecs.ts";
import { VaultView } from "../../../src/sidecar/save/vault-view.ts";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import { hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { logger } from "../../support/vaults.ts";

/** Weights measured on one core (docs/fidelity.md). */
const WEIGHTS: Weights = new Map([
  ["raw", { bytes: 1, decodeS: 1 / 20e9, divergence: 0 }],
  ["lossless", { bytes: 0.71, decodeS: 1 / 6.2e9, divergence: 0 }],
  ["int8-mean-had", { bytes: 0.515, decodeS: 1 / 5.1e9, divergence: 5e-6 }],
]);
const RULES = { ...chooseCodecs({ codec: { kv: "auto" }, turboQuant: { enabled: null } }) };
const rules = { ...RULES, threads: 1, maxKld: 1e-4 };
const at = (gigabits: number | null, isNearlyFull = false) => ({
  restoreRate: gigabits === null ? null : (gigabits * 1e9) / 8,
  isNearlyFull,
  isMemory: false,
});

test.each([
  [0.1, 1, "int8-mean-had", "sooner"],
  [1, 1, "int8-mean-had", "sooner"],
  [6, 1, "int8-mean-had", "sooner"],
  [7, 1, "lossless", "exact"],
  [10, 1, "lossless", "exact"],
  [40, 1, "raw", "exact"],
  // Threads share the decoding, so more of them favour fewer bytes.
  [10, 4, "int8-mean-had", "sooner"],
  [28, 4, "lossless", "exact"],
  [null, 1, "int8-mean-had", "unmeasured"],
])(
  "where records arrive at %s Gb/s and %s threads decode, blocks become %s (%s)",
  (gigabits, threads, codec, why) => {
    expect(chooseForm({ ...rules, threads }, WEIGHTS, at(gigabits))).toMatchObject({ codec, why });
  },
);

test("F97 a codec beyond the bound is named and not used, nor a lossy one where all must be exact", () => {
  const beyond = chooseForm({ ...rules, maxKld: 1e-6 }, WEIGHTS, at(0.1));
  expect(beyond).toMatchObject({ codec: "lossless", why: "beyond" });
  const exact = chooseCodecs({ codec: { kv: "auto" }, turboQuant: { enabled: false } });
  expect([exact.fidelity, exact.candidates]).toEqual([0, ["raw", "lossless"]]);
});

test("a vault that fills up gets fewest bytes, and a rate that wavers changes nothing", () => {
  expect(chooseForm(rules, WEIGHTS, at(40, true))).toMatchObject({
    codec: "int8-mean-had",
    why: "full",
  });
  // Raw and lossless are equal at 20.6 Gb/s.
  for (const last of ["raw", "lossless"] as const)
    expect(chooseForm(rules, WEIGHTS, at(20.6), last).codec).toBe(last);
  expect(chooseForm(rules, undefined, at(1))).toMatchObject({
    codec: "int8-mean-had",
    why: "unweighed",
  });
});

test("blocks in memory stay exact until it fills up, however long saves take", () => {
  const link = { restoreRate: 0.6e9, down: { rate: () => null } };
  const view = new VaultView({ tier: "shared" } as Vault, link as unknown as Link);
  const seen = { restoreRate: view.restoreRate, isMemory: view.isMemory };
  const memory = (isNearlyFull: boolean) => ({ ...seen, isNearlyFull });
  expect(chooseForm(rules, WEIGHTS, memory(false))).toEqual({
    codec: "raw",
    why: "exact",
    bytesPerS: null,
  });
  expect(chooseForm(rules, WEIGHTS, memory(true))).toMatchObject({
    codec: "int8-mean-had",
    why: "full",
  });
});

test("blocks for several vaults use the codec of the slowest", async () => {
  const choice = new CodecChoice(RULES, { threads: 1, maxKld: 1e-4, logger });
  const pool = {
    weigh: () =>
      Promise.resolve(
        [...WEIGHTS.values()].map(({ bytes, decodeS, divergence }, index) => ({
          codec: [0, 1, 4][index]!,
          bytes: bytes * 1000,
          decodeS: decodeS * 1000,
          noise: divergence,
        })),
      ),
  };
  const slot = {
    arena: 1 as ArenaId,
    geometry: 7 as GeometryId,
    slot: 0,
    generation: 0,
    sourceBytes: 1000,
  };
  await choice.weigh(pool as never, "kv", slot);
  const view = (address: string, gigabits: number): VaultView =>
    ({ address, ...at(gigabits) }) as never;
  const views = [view("near", 100), view("far", 0.1)];
  expect(choice.idFor("kv", slot.geometry, views)).toBe(4);
  expect(choice.idFor("kv", slot.geometry, views.slice(0, 1))).toBe(0);
  expect(choice.idFor("ssm", slot.geometry, views)).toBe(0);
  expect([choice.formOf("near")!.codec, choice.names]).toEqual(["raw", "raw, int8-mean-had"]);
});

const VECTORS = 2 * 2 * 16 * 2;
const PAGE = VECTORS * 32 * 2;
const INT8_RECORD = 192 + VECTORS * (2 + 32);
/** A mean for each head of K in each layer; of the first block, each head's first vectors of K and V. */
const MEANS = 2 * 2 * (2 + 32);
const EXACT = 2 * 2 * 2 * 32 * 2;

test("within a bound of 0 blocks get smaller bit for bit, in the namespace of a lossy codec", async () => {
  const scene = await openScene({ kv: "auto", maxKld: 0 });
  const { engine, proxy, sidecar } = scene;
  proxy.set({ bytesPerSecond: 2_000_000 });
  const [first, second] = ["first", "second"].map((name) => makeBlocks(name, 32, PAGE));
  for (const { pages } of [...first!, ...second!]) pages.forEach(makeCalm);
  await saveAll(scene, first!);
  const before = sidecar.counters.get("bytes_sent");
  await saveAll(scene, second!);
  expect(sidecar.counters.get("bytes_sent") - before).toBeLessThan(32 * 0.75 * PAGE);
  const { form } = sidecar.status().vaults.kv[0]!;
  expect(form).toMatchObject({ codec: "lossless", why: "beyond" });
  const view = await engine.done(engine.prefetch(hashesOf(second!)));
  expect(view.reason).toBe("complete");
  for (const [index, block] of second!.entries())
    expect(engine.holds(view, index, block)).toBe(true);
  engine.release(view.plan);
  await expectNoLeak(scene);
});

test("over a slow link blocks become small, and status and explain say so", async () => {
  const scene = await openScene({ kv: "auto" });
  const { engine, proxy, sidecar } = scene;
  proxy.set({ bytesPerSecond: 2_000_000 });
  const [first, second] = ["first", "second"].map((name) => makeBlocks(name, 32, PAGE));
  for (const { pages } of [...first!, ...second!]) pages.forEach(makeFinite);
  await saveAll(scene, first!);
  const before = sidecar.counters.get("bytes_sent");
  await saveAll(scene, second!);
  expect(sidecar.counters.get("bytes_sent") - before).toBe(32 * (INT8_RECORD + MEANS) + EXACT);
  const { address, form } = sidecar.status().vaults.kv[0]!;
  expect(form).toMatchObject({ codec: "int8-mean-had", why: "sooner" });
  expect(showForm(form!)).toMatch(/^int8-mean-had: comes back soonest, link \d.*B\/s$/);
  const asked = engine.prefetch(hashesOf(second!));
  const view = await engine.done(asked);
  expect([view.reason, engine.holds(view, 0, second![0]!)]).toEqual(["complete", false]);
  const [account] = sidecar.explain("", 1);
  const line = `  stored:  ${address} takes blocks as ${showForm(account!.forms![0]!)}`;
  expect(explained(account!)).toContain(line);
});

/** Clears the exponent's highest bit of every bf16: no inf, no NaN, nothing above 2. */
function makeFinite(page: Buffer): void {
  for (let byte = 1; byte < page.length; byte += 2) page[byte] = page[byte]! & 0xbf;
}

/** Leaves one exponent value for every bf16. */
function makeCalm(page: Buffer): void {
  for (let byte = 1; byte < page.length; byte += 2) page[byte] = (page[byte]! & 0x80) | 0x3f;
}
