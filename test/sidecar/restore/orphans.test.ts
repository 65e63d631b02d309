// Owns the proof that what no prompt can reach is demoted in its vault: only when the gap stays, within bounds, and never again where it is refused.
import { expect, test, vi } from "vitest";
import { HASH_BYTES, newBitmap, setBit, toNamespace } from "../../../src/block.ts";
import type * as Limits from "../../../src/limits.ts";
import { DEMOTE_KEYS_MAX, ORPHANS_MAX } from "../../../src/limits.ts";
import { newSidecarCounters } from "../../../src/metrics.ts";
import { Orphans } from "../../../src/sidecar/restore/orphans.ts";
import { HELLO, openFakeVault } from "../../support/fake-vault.ts";
import { ATTENTION, openHybrid, STATES } from "../../support/hybrids.ts";
import { digest, keysOf, makeRecord, makeRecords, NAMESPACE } from "../../support/records.ts";
import { makeBlocks } from "../../support/shim-client.ts";
import { ALL_ANSWERED, gatesOf } from "../../support/sidecars.ts";
import {
  closeAfterTest,
  logger,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../../support/vaults.ts";

vi.mock("../../../src/limits.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  ORPHAN_WAIT_MS: 20,
  ORPHANS_MAX: 3,
}));

const PAGE = 8192;
async function openTorn() {
  const scene = await openHybrid();
  const blocks = makeBlocks("torn", 8, PAGE);
  const { counters } = scene.sidecar;
  const isOrphaned = (count: number): Promise<void> =>
    until(() => counters.get("orphans_demoted") === count, `${count} to be demoted`);
  return { ...scene, blocks, isOrphaned };
}

test("states and attention behind a block that is nowhere go first, those before it do not", async () => {
  const { blocks, kv, ssm, sidecar, ask, store, isOrphaned } = await openTorn();
  await store([...blocks.slice(0, 3), blocks[5]!], ATTENTION);
  await store(blocks.slice(2), STATES);
  await ask(blocks);
  await isOrphaned(6);
  // States of boundaries 4 to 8, and the sixth block; what lies before the gap can be used.
  expect([ssm.counters.get("demoted"), kv.counters.get("demoted")]).toEqual([5, 1]);
  expect(ssm.counters.get("demotes")).toBe(1);
  expect(ssm.stats().records).toBe(6);
  expect(sidecar.counters.get("orphans_found")).toBe(6);
});

test("what is whole is left alone, and attention without states is, too", async () => {
  const { blocks, kv, sidecar, ask, store } = await openTorn();
  await store(blocks, ATTENTION);
  await ask(blocks);
  await store(blocks.slice(0, 4), STATES);
  await ask(blocks);
  expect(sidecar.counters.get("orphans_found")).toBe(0);
  expect(kv.counters.get("demotes")).toBe(0);
});

/** The look-up of a prompt of `count` blocks in one group of attention and one of states. */
function found(count: number, kvHeld: readonly number[], name = "prompt") {
  const hashes = Buffer.concat(Array.from({ length: count }, (_, at) => digest(`${name} ${at}`)));
  const bitmap = (held: readonly number[]): Buffer => {
    const bits = newBitmap(hashes.length / HASH_BYTES);
    for (const index of held) setBit(bits, index);
    return bits;
  };
  const every = Array.from({ length: count }, (_, index) => index);
  const of = { hashes, from: 0, tokens: 16 };
  return {
    groups: [
      { ...of, group: 0, class: "kv" as const, tail: 0 },
      { ...of, group: 1, class: "ssm" as const, tail: 1 },
    ],
    answer: {
      keys: [],
      held: [bitmap(kvHeld), bitmap(every)],
      ...ALL_ANSWERED,
    },
  };
}

async function openOrphans(kvAddress?: { address: string }) {
  const kv = await openVault();
  const ssm = await openVault({ recordClass: "ssm" });
  const vaults = { kv: openClient(kvAddress ?? kv), ssm: openClient(ssm, "ssm") };
  const gates = gatesOf(vaults);
  const counters = newSidecarCounters();
  const orphans = closeAfterTest(new Orphans({ shards: 1, gates, counters, logger }));
  return { kv, ssm, gates, counters, orphans, vaults };
}

const SPACE = toNamespace(NAMESPACE);

test("a gap that was filled meanwhile is none, and a vault that did not answer says nothing", async () => {
  const { kv, ssm, counters, gates, orphans, vaults } = await openOrphans();
  // The second block of this prompt is the first of these records: it is there when the gap is looked at again.
  const [filled] = makeRecords(1);
  await vaults.kv.put(NAMESPACE, [filled!], SOON_MS);
  const { groups, answer } = found(4, [0]);
  for (const group of groups) filled!.key.copy(group.hashes, HASH_BYTES, 0, HASH_BYTES);
  orphans.note(SPACE, groups, { ...answer, silent: new Set(gates.kv) });
  expect(counters.get("orphans_found")).toBe(0);
  orphans.note(SPACE, groups, answer);
  orphans.note(SPACE, groups, answer);
  expect(counters.get("orphans_found")).toBe(3);
  await until(() => kv.counters.get("lookup_keys") === 1, "the second look");
  // Another one whose gap stays comes later, and is the only one that is said.
  const other = found(4, [0, 1], "other");
  const state = makeRecord(0, { recordClass: "ssm", group: 1 });
  await vaults.ssm.put(NAMESPACE, [state], SOON_MS);
  for (const group of other.groups) state.key.copy(group.hashes, 3 * HASH_BYTES, 0, HASH_BYTES);
  orphans.note(SPACE, other.groups, other.answer);
  await until(() => ssm.counters.get("demoted") === 1, "the hint");
  expect(ssm.counters.get("demotes")).toBe(1);
});

test("no more is kept in mind, and no more is said at once, than the limits", async () => {
  const { orphans, counters, ssm } = await openOrphans();
  for (let index = 0; index < ORPHANS_MAX + 2; index += 1) {
    const { groups, answer } = found(DEMOTE_KEYS_MAX + 9, [], `prompt ${index}`);
    orphans.note(SPACE, groups, answer);
  }
  expect(counters.get("orphans_found")).toBe(ORPHANS_MAX * DEMOTE_KEYS_MAX);
  await until(() => ssm.counters.get("demotes") === ORPHANS_MAX, "the hints");
  orphans.close();
});

test("a vault of an older release is asked once, and again when it has been restarted", async () => {
  let asked = 0;
  const Demote = (_call: unknown, done: (error: object) => void): void => {
    asked += 1;
    done({ code: 12, details: "the server does not implement the method" });
  };
  let epoch = 1;
  const Hello = (_call: unknown, done: (error: null, reply: object) => void): void =>
    done(null, { ...HELLO, epoch });
  const { gates, vaults } = await openOrphans(await openFakeVault({ Demote, Hello }));
  const keys = keysOf(makeRecords(2));
  await expect(gates.kv[0]!.demote(SPACE, keys)).rejects.toMatchObject({ code: "VAULT_REFUSED" });
  expect(await gates.kv[0]!.demote(SPACE, keys)).toBe(0);
  expect(asked).toBe(1);
  epoch = 2;
  await vaults.kv.hello(SOON_MS);
  await expect(gates.kv[0]!.demote(SPACE, keys)).rejects.toMatchObject({ code: "VAULT_REFUSED" });
  expect(asked).toBe(2);
});
