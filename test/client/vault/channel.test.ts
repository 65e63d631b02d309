// Owns the proof that a closed channel lets earlier calls finish.
import { setImmediate as turn } from "node:timers/promises";
import { expect, test } from "vitest";
import { VaultChannel } from "../../../src/client/vault/channel.ts";
import { vaultService } from "../../../src/wire/service.ts";
import { freePort } from "../../support/etcd.ts";
import { closeAfterTest, openVault, SOON_MS, until } from "../../support/vaults.ts";

test("a call that the vault has not read yet is answered after its channel was closed", async () => {
  const vault = await openVault();
  const options = { timeoutMs: SOON_MS, signal: new AbortController().signal };
  // Tried after each turn of the loop, because the call's progress depends on turns.
  for (let turns = 0; turns < 12; turns += 1) {
    const channel = closeAfterTest(new VaultChannel(vault.address));
    await channel.unary(vaultService.Stats, {}, options);
    const calls = [1, 2, 3].map(() => channel.unary(vaultService.Stats, {}, options));
    for (let at = 0; at < turns; at += 1) await turn();
    channel.close();
    expect(await Promise.all(calls)).toHaveLength(3);
  }
});

const stats = (channel: VaultChannel): Promise<unknown> =>
  channel.unary(
    vaultService.Stats,
    {},
    { timeoutMs: SOON_MS, signal: new AbortController().signal },
  );

test("from an address that is none of this machine calls fail at once, and the loop goes on", async () => {
  const vault = await openVault();
  const channel = closeAfterTest(new VaultChannel(vault.address, null, "203.0.113.9"));
  await expect(stats(channel)).rejects.toThrow("EADDRNOTAVAIL");
});

test.skipIf(process.platform !== "linux")(
  "from a named address it connects again, too",
  async () => {
    const port = await freePort();
    const channel = closeAfterTest(new VaultChannel(`127.0.0.1:${port}`, null, "127.0.0.3"));
    await expect(stats(channel)).rejects.toThrow("ECONNREFUSED");
    await openVault({ port });
    const isAnswered = (): Promise<boolean> =>
      stats(channel).then(
        () => true,
        () => false,
      );
    await until(isAnswered, "an answer");
  },
);
