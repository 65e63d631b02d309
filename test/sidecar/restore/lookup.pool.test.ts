// Owns the proof of a look-up's counts for each vault of a pool: holes before held blocks, and blocks at an earlier owner.
import { randomBytes } from "node:crypto";
import { expect, test } from "vitest";
import { HASH_BYTES, newBitmap, setBit } from "../../../src/base/block.ts";
import type { Namespace } from "../../../src/base/block.ts";
import { newSidecarCounters } from "../../../src/base/metrics.ts";
import { NO_COST } from "../../../src/client/source.ts";
import type { BlockSource } from "../../../src/client/source.ts";
import { NO_VAULT } from "../../../src/pool/placement.ts";
import { lookUp } from "../../../src/sidecar/restore/lookup.ts";
import type { LookupGate, LookupGates } from "../../../src/sidecar/vaults/vaults.ts";
import { logger } from "../../support/vaults.ts";

const COUNT = 8;
const HASHES = randomBytes(COUNT * HASH_BYTES);

/** Makes a gate that holds these blocks of the prompt; null: it does not answer. */
function gateOf(held: readonly number[] | null, isFar = false): LookupGate {
  const names = new Set(
    held?.map((at) => HASHES.toString("hex", at * HASH_BYTES, (at + 1) * HASH_BYTES)),
  );
  const lookup = async (_namespace: Namespace, keys: Buffer): Promise<Buffer> => {
    if (held === null) throw new Error("it does not answer");
    const keyBytes = keys.length / asked;
    const found = newBitmap(asked);
    for (let at = 0; at < asked; at += 1) {
      const from = at * keyBytes;
      if (names.has(keys.toString("hex", from, from + HASH_BYTES))) setBit(found, at);
    }
    return await Promise.resolve(found);
  };
  let asked = 0;
  const [near, far] = [{} as BlockSource, {} as BlockSource];
  return {
    tier: "vault",
    state: held === null ? "down" : "up",
    address: "a:1",
    holes: 0,
    moved: 0,
    isItself: (source: BlockSource) => source === near,
    find: async (namespace: Namespace, keys: Buffer) => {
      asked = keys.length / KEY_BYTES;
      const present = await lookup(namespace, keys);
      if (!isFar) return [{ source: near, keys: present, cost: NO_COST }];
      const none = newBitmap(asked);
      return [
        { source: near, keys: none, cost: NO_COST },
        { source: far, keys: present, cost: null },
      ];
    },
  } as unknown as LookupGate;
}
const KEY_BYTES = 36;
const CONTEXT = {
  namespace: randomBytes(32) as unknown as Namespace,
  shards: 1,
  cache: null,
  isWanted: () => true,
  timeoutMs: 1000,
  counters: newSidecarCounters(),
  logger,
};

async function countsOf(
  owners: readonly number[],
  before: readonly number[] | undefined,
  held: readonly (readonly number[] | null)[],
  tail = 0,
  inPeace: readonly number[] = owners,
): Promise<[holes: number, moved: number][]> {
  const kv = held.map((of) => gateOf(of));
  const old = before === undefined ? undefined : Uint8Array.from(before);
  const places = {
    owners: Uint8Array.from(owners),
    others: old === undefined ? [] : [old],
    before: old === undefined ? [] : [old],
  };
  const gates: LookupGates = { kv, ssm: [] };
  const placesOf = (): typeof places => places;
  const ownerInPeace = (_hashes: Buffer, index: number): number => inPeace[index] ?? NO_VAULT;
  await lookUp([{ group: 0, class: "kv", hashes: HASHES, tail }], {
    ...CONTEXT,
    pools: { kv: { placesOf, ownerInPeace }, ssm: { placesOf, ownerInPeace } },
    gates,
  });
  return kv.map(({ holes, moved }) => [holes, moved]);
}

const NOTHING = [
  [0, 0],
  [0, 0],
  [0, 0],
];
const OWNERS = [0, 0, 1, 1, 2, 2, 0, 0];

test("a missing block before a held one is a hole; none behind the last held one is", async () => {
  const held = [[0, 1, 6], [2], [4, 5]];
  expect(await countsOf(OWNERS, undefined, held)).toEqual([
    [0, 0],
    [1, 0],
    [0, 0],
  ]);
  expect(await countsOf(OWNERS, undefined, [[0], [], [4]])).toEqual([
    [1, 0],
    [2, 0],
    [0, 0],
  ]);
});

test("a vault that does not answer has no holes, nor have windows, of which only the end is needed", async () => {
  const held = [[0, 1, 6, 7], null, [4, 5]];
  expect(await countsOf(OWNERS, undefined, held)).toEqual(NOTHING);
  expect(await countsOf(OWNERS, undefined, [[6, 7], [], []], 2)).toEqual(NOTHING);
});

test("a vault that stands in for one that is down has no holes of its blocks", async () => {
  const standsIn = OWNERS.map((owner) => (owner === 1 ? 2 : owner));
  const held = [[0, 1, 6, 7], null, [4, 5]];
  expect(await countsOf(standsIn, undefined, held, 0, OWNERS)).toEqual(NOTHING);
});

test("a block found at an earlier owner has moved, unless today's owner has it, too", async () => {
  const none = NO_VAULT;
  const before = [none, none, 0, 0, none, none, 1, 2];
  const held = [
    [0, 1, 2, 7],
    [2, 3, 6],
    [4, 5, 7],
  ];
  expect(await countsOf(OWNERS, before, held)).toEqual([
    [0, 0],
    [0, 1],
    [0, 0],
  ]);
});

test("F106 of two vaults that hold a block, the one without an archive read serves it", async () => {
  const all = [...OWNERS.keys()];
  for (const [isFirstFar, vault] of [
    [true, 1],
    [false, 0],
  ] as const) {
    const kv = [gateOf(all, isFirstFar), gateOf(all, !isFirstFar)];
    const [owners, other] = [0, 1].map((of) => new Uint8Array(COUNT).fill(of));
    const placesOf = () => ({ owners: owners!, others: [other!] });
    const ownerInPeace = (): number => 0;
    const answer = await lookUp([{ group: 0, class: "kv", hashes: HASHES }], {
      ...CONTEXT,
      pools: { kv: { placesOf, ownerInPeace }, ssm: { placesOf, ownerInPeace } },
      gates: { kv, ssm: [] },
    });
    const second = 1 - vault;
    const offer = { first: 0, end: COUNT, vault, second, archived: 0, source: null };
    expect(answer.groups[0]!.offers).toEqual([offer]);
  }
});

test("neighbours that one vault offers alike share an offer, and all blocks are covered, held or not", async () => {
  const kv = [gateOf([0, 1, 6]), gateOf([2]), gateOf([4, 5], true)];
  const placesOf = () => ({ owners: Uint8Array.from(OWNERS), others: [] });
  const ownerInPeace = (_hashes: Buffer, index: number): number => OWNERS[index] ?? NO_VAULT;
  const { groups } = await lookUp([{ group: 0, class: "kv", hashes: HASHES }], {
    ...CONTEXT,
    pools: { kv: { placesOf, ownerInPeace }, ssm: { placesOf, ownerInPeace } },
    gates: { kv, ssm: [] },
  });
  expect([...groups[0]!.held]).toEqual([0b0111_0111]);
  expect(
    groups[0]!.offers.map(({ first, end, vault, archived }) => [first, end, vault, archived]),
  ).toEqual([
    [0, 2, 0, 0],
    [2, 4, 1, 0],
    [4, 6, 2, 1],
    [6, 8, 0, 0],
  ]);
  expect(groups[0]!.offers.map(({ source }) => source !== null)).toEqual([
    false,
    false,
    true,
    false,
  ]);
});
