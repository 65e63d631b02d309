// Owns the conformance of every place that blocks come from: a vault over lanes, the machine's own vault, and a shared region.
import { join } from "node:path";
import { damageAll, openShared, regionAddress } from "../support/regions.ts";
import { testDirectory } from "../support/sidecars.ts";
import { describeStore } from "../support/source-suite.ts";
import { openClient, openVault } from "../support/vaults.ts";

describeStore("a vault over lanes", async () => {
  const vault = await openVault();
  return { store: openClient(vault), kill: () => vault.close() };
});

describeStore("the machine's own vault", async () => {
  const vault = await openVault();
  const path = join(testDirectory(), "vault.sock");
  await vault.door(path);
  return { store: openClient({ address: `unix:${path}` }) };
});

describeStore("a shared region", async () => {
  const address = regionAddress();
  const store = await openShared(address);
  return { store, damage: () => damageAll(address) };
});
