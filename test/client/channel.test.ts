// Owns the proof that a channel which is closed lets calls that were made before end by themselves.
import { setImmediate as turn } from "node:timers/promises";
import { expect, test } from "vitest";
import { VaultChannel } from "../../src/client/channel.ts";
import { vaultService } from "../../src/wire/service.ts";
import { closeAfterTest, openVault, SOON_MS } from "../support/vaults.ts";

test("a call that the vault has not read yet is answered after its channel was closed", async () => {
  const vault = await openVault();
  const options = { timeoutMs: SOON_MS, signal: new AbortController().signal };
  // How far a call has come is a matter of turns of the loop.
  for (let turns = 0; turns < 12; turns += 1) {
    const channel = closeAfterTest(new VaultChannel(vault.address));
    await channel.unary(vaultService.Stats, {}, options);
    const calls = [1, 2, 3].map(() => channel.unary(vaultService.Stats, {}, options));
    for (let at = 0; at < turns; at += 1) await turn();
    channel.close();
    expect(await Promise.all(calls)).toHaveLength(3);
  }
});
