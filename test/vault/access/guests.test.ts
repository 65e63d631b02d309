// Owns the proof that a connection which works is not taken for one that only makes noise.
import { expect, test } from "vitest";
import { GUEST_RESETS_MAX } from "../../../src/limits.ts";
import { openClient, openVault, SOON_MS } from "../../support/vaults.ts";

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
