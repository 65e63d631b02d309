// Owns the proof of `[codec] kv = "auto"`: chosen by time over each vault's link, lossy where the model is certified, shown in status and explain.
import { expect, test, vi } from "vitest";
import { toNamespace } from "../../../src/base/block.ts";
import type { ArenaId, GeometryId } from "../../../src/base/native.ts";
import type { Vault } from "../../../src/client/vault.ts";
import { describe as explained } from "../../../src/control/explanation.ts";
import { showForm } from "../../../src/control/form.ts";
import type { Link } from "../../../src/cost/link.ts";
import { writeCertificate } from "../../../src/sidecar/save/certificates.ts";
import { chooseForm, CodecChoice } from "../../../src/sidecar/save/codec-choice.ts";
import type { Weights } from "../../../src/sidecar/save/codec-choice.ts";
import { chooseCodecs, codecId, LOSSY } from "../../../src/sidecar/save/codecs.ts";
import { VaultView } from "../../../src/sidecar/save/vault-view.ts";
import { certificateOf, identify } from "../../support/certificates.ts";
import { digest } from "../../support/records.ts";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import { hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { logger } from "../../support/vaults.ts";

/** Weights measured on one core (docs/fidelity.md). */
const WEIGHTS: Weights = new Map([
  ["raw", { bytes: 1, decodeS: 1 / 20e9 }],
  ["lossless", { bytes: 0.71, decodeS: 1 / 6.2e9 }],
  [LOSSY.name, { bytes: 0.515, decodeS: 1 / 5.1e9 }],
]);
const CONFIG = { codec: { kv: "auto" }, turboQuant: { enabled: null } } as const;
const RULES = chooseCodecs(CONFIG, true);
const rules = { ...RULES, threads: 1 };
const at = (gigabits: number | null, isNearlyFull = false) => ({
  restoreRate: gigabits === null ? null : (gigabits * 1e9) / 8,
  isNearlyFull,
  isMemory: false,
});

test.each([
  [0.1, 1, LOSSY.name, "sooner"],
  [1, 1, LOSSY.name, "sooner"],
  [6, 1, LOSSY.name, "sooner"],
  [7, 1, "lossless", "exact"],
  [10, 1, "lossless", "exact"],
  [40, 1, "raw", "exact"],
  // Threads share the decoding, so more of them favour fewer bytes.
  [10, 4, LOSSY.name, "sooner"],
  [28, 4, "lossless", "exact"],
  [null, 1, LOSSY.name, "unmeasured"],
])(
  "where records arrive at %s Gb/s and %s threads decode, blocks become %s (%s)",
  (gigabits, threads, codec, why) => {
    expect(chooseForm({ ...rules, threads }, WEIGHTS, at(gigabits))).toMatchObject({ codec, why });
  },
);

test("F97 without a certificate, or where all must be exact, no lossy codec is offered", () => {
  const never = { ...CONFIG, turboQuant: { enabled: false } };
  for (const exact of [chooseCodecs(CONFIG), chooseCodecs(never), chooseCodecs(never, true)]) {
    expect([exact.fidelity, exact.candidates]).toEqual([0, ["raw", "lossless"]]);
    expect(chooseForm({ ...exact, threads: 1 }, WEIGHTS, at(0.1)).codec).toBe("lossless");
  }
});

test("a vault that fills up gets fewest bytes, and a rate that wavers changes nothing", () => {
  expect(chooseForm(rules, WEIGHTS, at(40, true))).toMatchObject({
    codec: LOSSY.name,
    why: "full",
  });
  // Raw and lossless are equal at 20.6 Gb/s.
  for (const last of ["raw", "lossless"] as const)
    expect(chooseForm(rules, WEIGHTS, at(20.6), last).codec).toBe(last);
  expect(chooseForm(rules, undefined, at(1))).toMatchObject({
    codec: LOSSY.name,
    why: "unweighed",
  });
});

test.each([
  [0, 0, false],
  [9, 0, false],
  [4, 10, false],
  [9, 10, true],
])(
  "a store of %s of %s bytes (0: no known size) is nearly full: %s",
  async (used, most, isFull) => {
    const stats = { usedBytes: used, maxBytes: most };
    let answered = false;
    const ask = (): Promise<typeof stats> => {
      answered = true;
      return Promise.resolve(stats);
    };
    const view = new VaultView({ tier: "vault", stats: ask } as never, {} as unknown as Link);
    expect(view.isNearlyFull).toBe(false);
    await vi.waitFor(() => expect([answered, view.isNearlyFull]).toEqual([true, isFull]));
  },
);

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
    codec: LOSSY.name,
    why: "full",
  });
});

test("blocks for several vaults use the codec of the slowest", async () => {
  const choice = new CodecChoice(chooseCodecs(CONFIG), { threads: 1, logger });
  const pool = {
    weigh: () =>
      Promise.resolve(
        [...WEIGHTS].map(([name, { bytes, decodeS }]) => ({
          codec: codecId(name),
          bytes: bytes * 1000,
          decodeS: decodeS * 1000,
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
  const [certified, other] = ["certified", "other"].map((name) => toNamespace(digest(name)));
  choice.name(certified!, RULES);
  await choice.weigh(pool as never, certified!, "kv", slot);
  const view = (address: string, gigabits: number): VaultView =>
    ({ address, ...at(gigabits) }) as never;
  const views = [view("near", 100), view("far", 0.1)];
  const lossy = codecId(LOSSY.name);
  expect(choice.idFor(certified!, "kv", slot.geometry, views)).toBe(lossy);
  expect(choice.idFor(certified!, "kv", slot.geometry, views.slice(0, 1))).toBe(0);
  expect(choice.idFor(certified!, "ssm", slot.geometry, views)).toBe(0);
  expect([choice.formOf("near")!.codec, choice.names]).toEqual(["raw", `raw, ${LOSSY.name}`]);
  expect(choice.fidelityOf(certified!)).toBe(lossy);
  // A namespace of an engine that is not certified stays exact over the same link.
  expect(choice.idFor(other!, "kv", slot.geometry, views)).toBe(codecId("lossless"));
  expect(choice.fidelityOf(other!)).toBe(0);
});

const VECTORS = 2 * 2 * 16 * 2;
const PAGE = VECTORS * 32 * 2;
const INT8_RECORD = 192 + VECTORS * (2 + 32);
/** A mean for each head of K in each layer; of the first block, each head's first vectors of K and V. */
const MEANS = 2 * 2 * (2 + 32);
const EXACT = 2 * 2 * 2 * 32 * 2;

test("an engine without a certificate gets smaller blocks bit for bit, in an exact namespace", async () => {
  const scene = await openScene({ kv: "auto" });
  const { engine, proxy, sidecar } = scene;
  await identify(engine, "files:unknown", 0);
  proxy.set({ bytesPerSecond: 2_000_000 });
  const [first, second] = ["first", "second"].map((name) => makeBlocks(name, 32, PAGE));
  for (const { pages } of [...first!, ...second!]) pages.forEach(makeCalm);
  await saveAll(scene, first!);
  const before = sidecar.counters.get("bytes_sent");
  await saveAll(scene, second!);
  expect(sidecar.counters.get("bytes_sent") - before).toBeLessThan(32 * 0.75 * PAGE);
  const { form } = sidecar.status().vaults.kv[0]!;
  expect(form).toMatchObject({ codec: "lossless" });
  const view = await engine.done(engine.prefetch(hashesOf(second!)));
  expect(view.reason).toBe("complete");
  for (const [index, block] of second!.entries())
    expect(engine.holds(view, index, block)).toBe(true);
  engine.release(view.plan);
  await expectNoLeak(scene);
});

test("over a slow link a certified model's blocks become small, and status and explain say so", async () => {
  const certificates = testDirectory();
  writeCertificate(certificates, certificateOf({ weights: "files:known" }));
  const scene = await openScene({ kv: "auto", certificates }, { namespace: null });
  const { engine, proxy, sidecar } = scene;
  await identify(engine, "files:known", codecId(LOSSY.name));
  engine.nameItself();
  proxy.set({ bytesPerSecond: 2_000_000 });
  const [first, second] = ["first", "second"].map((name) => makeBlocks(name, 32, PAGE));
  for (const { pages } of [...first!, ...second!]) pages.forEach(makeFinite);
  await saveAll(scene, first!);
  const before = sidecar.counters.get("bytes_sent");
  await saveAll(scene, second!);
  expect(sidecar.counters.get("bytes_sent") - before).toBe(32 * (INT8_RECORD + MEANS) + EXACT);
  const { address, form } = sidecar.status().vaults.kv[0]!;
  expect(form).toMatchObject({ codec: LOSSY.name, why: "sooner" });
  expect(showForm(form!)).toMatch(
    /: restores fastest at \d.*B\/s, the link's rate when that was chosen, at the last save$/,
  );
  const asked = engine.prefetch(hashesOf(second!));
  const view = await engine.done(asked);
  expect([view.reason, engine.holds(view, 0, second![0]!)]).toEqual(["complete", false]);
  const [account] = sidecar.explain("", 1);
  const stored = `as ${showForm(account!.forms![0]!)} (${address})`;
  expect(explained(account!).join("\n")).toContain(stored);
  expect(explained(account!).join("\n")).toContain(
    `INT8 (${LOSSY.name}), certified on 2026-11-28 with KLD 2.1e-5`,
  );
});

/** Clears the exponent's highest bit of every bf16: no inf, no NaN, nothing above 2. */
function makeFinite(page: Buffer): void {
  for (let byte = 1; byte < page.length; byte += 2) page[byte] = page[byte]! & 0xbf;
}

/** Leaves one exponent value for every bf16. */
function makeCalm(page: Buffer): void {
  for (let byte = 1; byte < page.length; byte += 2) page[byte] = (page[byte]! & 0x80) | 0x3f;
}
