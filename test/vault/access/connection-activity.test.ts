// Owns the proof that a busy connection is not mistaken for one that sends only noise.
import { expect, test } from "vitest";
import { openClient, openVault, SOON_MS } from "../../support/vaults.ts";

const CALLS = 768;

test("many calls in a row are no noise", async () => {
  const vault = await openVault();
  const client = openClient(vault, "kv", { lanes: 0 });
  for (let done = 0; done < CALLS; done += 32) {
    await Promise.all(Array.from({ length: 32 }, () => client.health(SOON_MS)));
  }
  expect(vault.counters.get("connections_refused")).toBe(0);
  expect(client.state).toBe("up");
});
