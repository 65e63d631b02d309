// Owns the proof that a connection which works is not taken for one that only makes noise.
import { expect, test } from "vitest";
import { GUEST_IDLE_BYTES_MAX, GUEST_RESETS_MAX, GUEST_SWEEP_MS } from "../../../src/limits.ts";
import { sleep } from "../../../src/time.ts";
import { pieceOf, RawStore } from "../../support/raw-calls.ts";
import { makeRecords } from "../../support/records.ts";
import { openClient, openVault, SOON_MS } from "../../support/vaults.ts";

const NEVER = new AbortController().signal;

test("a call that began before a sweep and ends before the next one is what its bytes belong to", async () => {
  const vault = await openVault();
  const records = makeRecords(12, { payloadBytes: 2 * GUEST_IDLE_BYTES_MAX });
  const store = new RawStore(vault);
  store.offer(records);
  await store.wanted();
  for (const [item, { record }] of records.entries()) {
    // Through one sweep at least; whenever the last one comes, more than may be noise comes behind it.
    await sleep((1.5 * GUEST_SWEEP_MS) / records.length, NEVER);
    store.pieces(pieceOf(item, record));
  }
  expect((await store.finish()).size).toBe(records.length);
  await sleep(1.2 * GUEST_SWEEP_MS, NEVER);
  expect(vault.counters.get("connections_refused")).toBe(0);
});

test("calls that were answered are no resets, however many they are", async () => {
  const vault = await openVault();
  const client = openClient(vault, "kv", { lanes: 0 });
  const calls = 3 * GUEST_RESETS_MAX;
  for (let done = 0; done < calls; done += 32) {
    await Promise.all(Array.from({ length: 32 }, () => client.health(SOON_MS)));
  }
  expect(vault.counters.get("connections_refused")).toBe(0);
  expect(client.state).toBe("up");
});
