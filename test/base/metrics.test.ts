// Owns the proof that counters add up, begin with their inventory, and cannot grow without end.
import { expect, test } from "vitest";
import { COUNTER_NAMES_MAX } from "../../src/base/limits/general.ts";
import {
  Counters,
  newSidecarCounters,
  newVaultCounters,
  SIDECAR_COUNTERS,
  VAULT_COUNTERS,
} from "../../src/base/metrics.ts";

test("every name of the inventory is there from the start, at zero", () => {
  expect(Object.keys(newSidecarCounters().snapshot())).toEqual([...SIDECAR_COUNTERS]);
  expect(Object.keys(newVaultCounters().snapshot())).toEqual([...VAULT_COUNTERS]);
  expect(Object.values(newVaultCounters().snapshot()).every((value) => value === 0)).toBe(true);
});

test.each([
  ["sidecar", SIDECAR_COUNTERS],
  ["vault", VAULT_COUNTERS],
])("the %s's names are unique and in snake case", (_name, inventory) => {
  expect(new Set(inventory).size).toBe(inventory.length);
  for (const name of inventory) expect(name).toMatch(/^[a-z]+(_[a-z]+)*$/);
});

test("counts add up, also under a family's names", () => {
  const counters = newSidecarCounters();
  counters.add("blocks_saved");
  counters.add("blocks_saved", 4);
  counters.add("dropped_no_slot", 2);
  expect(counters.get("blocks_saved")).toBe(5);
  expect(counters.snapshot()).toMatchObject({ blocks_saved: 5, dropped_no_slot: 2 });
});

test("a snapshot does not follow later counts", () => {
  const counters = new Counters();
  const before = counters.snapshot();
  counters.add("a");
  expect(before).toEqual({});
});

test("names beyond the limit are counted together", () => {
  const counters = new Counters();
  for (let name = 0; name < COUNTER_NAMES_MAX + 10; name += 1) counters.add(`n${name}`);
  counters.add("n0");
  expect(Object.keys(counters.snapshot())).toHaveLength(COUNTER_NAMES_MAX + 1);
  expect([counters.get("n0"), counters.get("other")]).toEqual([2, 10]);
});
