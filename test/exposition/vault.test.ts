// Owns the proof that a vault which lets everybody in can be seen from afar.
import { expect, test } from "vitest";
import { exposition } from "../../src/exposition/text.ts";
import { vaultFamilies } from "../../src/exposition/vault.ts";
import { openVault } from "../support/vaults.ts";

test("the gauge is 1 where other machines get in without TLS and token, else 0", async () => {
  const stats = (await openVault()).stats();
  expect(await exposition(vaultFamilies(stats))).toContain("\ntierkv_vault_insecure_lan 0\n");
  expect(await exposition(vaultFamilies(stats, true))).toContain("\ntierkv_vault_insecure_lan 1\n");
});
