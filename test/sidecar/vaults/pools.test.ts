// Owns the proof that sidecars which learn capacities at different times agree on owners, and meanwhile find each other's blocks.
import { createHash } from "node:crypto";
import { expect, test, vi } from "vitest";
import { HASH_BYTES } from "../../../src/base/block.ts";
import { VIEW_KEPT_MS, VIEWS_KEPT_MAX } from "../../../src/base/limits/pool.ts";
import type { VaultClient } from "../../../src/client/vault/vault-client.ts";
import { NO_VAULT } from "../../../src/pool/placement.ts";
import { Pool } from "../../../src/sidecar/vaults/pools.ts";
import type { Places } from "../../../src/sidecar/vaults/pools.ts";
import { closeAfterTest, openClient, openVault, MIB, SOON_MS } from "../../support/vaults.ts";

interface Said {
  address: string;
  tier?: "shared";
  isDown: boolean;
  capacityBytes: number | null;
}

const GIB = 2 ** 30;
const BLOCKS = 3200;
const HASHES = Buffer.concat(
  Array.from({ length: BLOCKS }, (_none, at) => createHash("sha256").update(`${at}`).digest()),
);
const silent = (count: number): Said[] =>
  Array.from({ length: count }, (_none, at) => ({
    address: `10.0.0.${at}:50051`,
    isDown: false,
    capacityBytes: null,
  }));
const poolOf = (vaults: readonly Said[], isDouble = false): Pool =>
  new Pool("kv", { clients: vaults as unknown as VaultClient[], isDouble });
const ownersOf = (pool: Pool): number[] => [...pool.placesOf(HASHES).owners];
/** Returns every vault that is asked for a block. */
const askedOf = ({ owners, others }: Places, at: number): (number | undefined)[] => [
  owners[at],
  ...others.map((list) => list[at]).filter((vault) => vault !== NO_VAULT),
];

test("until every vault has said its capacity all count alike; then shares are as capacities are", () => {
  const vaults = silent(3);
  const pool = poolOf(vaults);
  const alike = ownersOf(pool);
  vaults[0]!.capacityBytes = 64 * GIB;
  vaults[1]!.capacityBytes = 16 * GIB;
  expect(ownersOf(pool)).toEqual(alike);
  vaults[2]!.capacityBytes = 16 * GIB;
  expect(pool.shareOf(0)).toBeCloseTo(4 / 6, 1);
  expect(pool.shareOf(1)).toBeCloseTo(1 / 6, 1);
  expect(ownersOf(pool)).not.toEqual(alike);
});

test("blocks stored before a sidecar learned capacities are found by one that has, and the other way round", () => {
  const vaults = silent(3);
  const [early, late] = [poolOf(vaults), poolOf(vaults)];
  const before = ownersOf(early);
  for (const [at, vault] of vaults.entries()) vault.capacityBytes = (1 + at) * 8 * GIB;
  const places = late.placesOf(HASHES);
  for (const [at, owner] of before.entries()) expect(askedOf(places, at)).toContain(owner);
  const now = early.placesOf(HASHES);
  expect([...now.owners]).toEqual([...places.owners]);
  // Most blocks stay with their owner and are asked of one vault.
  const moved = before.filter((owner, at) => owner !== places.owners[at]).length;
  expect(askedTwice(places)).toBe(moved);
  expect(moved / BLOCKS).toBeLessThan(0.5);
});

const askedTwice = (places: Places): number =>
  Array.from({ length: BLOCKS }, (_none, at) => askedOf(places, at)).filter(
    ({ length }) => length > 1,
  ).length;

test("the owner of before is asked for an hour, and not while it is down", () => {
  const vaults = silent(3);
  const pool = poolOf(vaults);
  ownersOf(pool);
  for (const [at, vault] of vaults.entries()) vault.capacityBytes = (1 + at) * 8 * GIB;
  expect(askedTwice(pool.placesOf(HASHES))).toBeGreaterThan(0);
  vaults[0]!.isDown = true;
  const places = pool.placesOf(HASHES);
  for (let at = 0; at < BLOCKS; at += 1) expect(askedOf(places, at)).not.toContain(0);
  vaults[0]!.isDown = false;
  pool.placesOf(HASHES);
  const clock = vi.spyOn(performance, "now");
  closeAfterTest({ close: () => clock.mockRestore() });
  clock.mockReturnValue(performance.timeOrigin + VIEW_KEPT_MS * 2);
  expect(askedTwice(pool.placesOf(HASHES))).toBe(0);
});

test("of several changes in a row the owners before each are asked: records may not have moved between them", () => {
  const vaults = silent(2);
  const pool = poolOf(vaults);
  const seen = [ownersOf(pool)];
  for (let change = 1; change <= VIEWS_KEPT_MAX + 1; change += 1) {
    vaults.push(silent(2 + change).at(-1)!);
    seen.push(ownersOf(pool));
  }
  const places = pool.placesOf(HASHES);
  // The oldest list is one more than are kept.
  const isAsked = seen.map((owners) =>
    owners.every((owner, at) => askedOf(places, at).includes(owner)),
  );
  expect(isAsked).toEqual(seen.map((_owners, view) => view > 0));
});

test("one that is down and unknown does not keep the others from their shares, and changes little of theirs", () => {
  const vaults = silent(4);
  const pool = poolOf(vaults);
  for (const at of [0, 1, 2]) vaults[at]!.capacityBytes = (1 + at) * 8 * GIB;
  vaults[3]!.isDown = true;
  const without = poolOf(vaults.slice(0, 3));
  ownersOf(without);
  const [owners, others] = [ownersOf(pool), ownersOf(without)];
  const same = owners.filter((owner, at) => owner === others[at]).length;
  // Shares within a run depend on the capacity of all.
  expect(same / BLOCKS).toBeGreaterThan(0.8);
});

test("with two copies owner and second are two vaults that are up, for as long as there are two", () => {
  const vaults = silent(3);
  const pool = poolOf(vaults, true);
  const seconds = (): Uint8Array => pool.placesOf(HASHES).others[0]!;
  const owners = ownersOf(pool);
  for (const [at, second] of seconds().entries()) expect(second).not.toBe(owners[at]);
  const anchor = HASHES.subarray(0, HASH_BYTES);
  const home = pool.homeOf(anchor, anchor);
  expect([home.owner, home.second]).toEqual([owners[0], seconds()[0]]);
  vaults[owners[0]!]!.isDown = true;
  // The second copy is asked first now.
  expect(pool.homeOf(anchor, anchor).owner).toBe(home.second);
  for (const vault of vaults) vault.isDown = vault !== vaults[home.second];
  expect(pool.homeOf(anchor, anchor)).toEqual({ owner: home.second, second: NO_VAULT });
});

test("shared memory is asked first for everything and owns nothing, and the vaults' shares are as without it", () => {
  const vaults = silent(3);
  const shared: Said = {
    address: "shm:/dev/shm/x",
    tier: "shared",
    isDown: false,
    capacityBytes: null,
  };
  const [pool, without] = [poolOf([shared, ...vaults], true), poolOf(vaults, true)];
  const moved = (list: Uint8Array): number[] => [...list].map((vault) => vault + 1);
  for (const capacities of [[], [8, 16, 32]]) {
    for (const [at, size] of capacities.entries()) vaults[at]!.capacityBytes = size * GIB;
    const [places, plain] = [pool.placesOf(HASHES), without.placesOf(HASHES)];
    expect(new Set(places.owners)).toEqual(new Set([0]));
    expect([...places.others[0]!]).toEqual(moved(plain.owners));
    expect([...places.others[1]!]).toEqual(moved(plain.others[0]!));
    const anchor = HASHES.subarray(0, HASH_BYTES);
    expect(pool.homeOf(anchor, anchor).owner).toBe(plain.owners[0]! + 1);
  }
  expect([pool.shareOf(0), pool.local]).toEqual([0, 0]);
  shared.isDown = true;
  expect(pool.local).toBe(NO_VAULT);
  expect(ownersOf(pool)).toEqual(moved(without.placesOf(HASHES).owners));
});

test("a vault names the capacity of its larger tier at hello", async () => {
  const vault = await openVault({ maxBytes: 48 * MIB });
  const client = openClient(vault);
  expect(client.capacityBytes).toBeNull();
  await client.hello(SOON_MS);
  expect(client.capacityBytes).toBe(48 * MIB);
});

test("a vault that is back shares its blocks with its stand-in for an hour, and none of the others'", () => {
  vi.useFakeTimers();
  try {
    const vaults = silent(4);
    const pool = poolOf(vaults);
    const owners = ownersOf(pool);
    vaults[1]!.isDown = true;
    const during = ownersOf(pool);
    vaults[1]!.isDown = false;
    const places = pool.placesOf(HASHES);
    expect([...places.owners]).toEqual(owners);
    for (const [at, owner] of owners.entries())
      expect(askedOf(places, at)).toEqual(owner === 1 ? [1, during[at]] : [owner]);
    vi.advanceTimersByTime(VIEW_KEPT_MS + 1);
    expect(pool.placesOf(HASHES).others).toEqual([]);
  } finally {
    vi.useRealTimers();
  }
});

test("vaults that were away one after another share their blocks each with its own stand-in", () => {
  const vaults = silent(4);
  const pool = poolOf(vaults);
  const owners = ownersOf(pool);
  const whileAway = (...away: number[]): number[] => {
    for (const vault of away) vaults[vault]!.isDown = true;
    const during = ownersOf(pool);
    for (const vault of away) vaults[vault]!.isDown = false;
    return during;
  };
  const absences = [[1], [2], [3], [1, 2]].map((away) => ({ away, during: whileAway(...away) }));
  const places = pool.placesOf(HASHES);
  expect([...places.owners]).toEqual(owners);
  for (const [at, owner] of owners.entries()) {
    const standIns = absences.filter(({ away }) => away.includes(owner));
    const expected = new Set([owner, ...standIns.map(({ during }) => during[at])]);
    expect(new Set(askedOf(places, at))).toEqual(expected);
  }
  // Absences without a common vault need one list.
  expect(places.others.length).toBeLessThanOrEqual(2);
});
