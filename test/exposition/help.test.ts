// Owns the proof that every family says what it counts, and that a vault nobody asked yet is neither up nor down.
import { expect, test } from "vitest";
import { sidecarFamilies } from "../../src/exposition/sidecar.ts";
import { exposition } from "../../src/exposition/text.ts";
import { vaultFamilies } from "../../src/exposition/vault.ts";
import { openSidecar, testDirectory } from "../support/sidecars.ts";
import { openClient, openVault, until } from "../support/vaults.ts";

test("HELP is a sentence of its own for every family of both processes", async () => {
  const dataDir = testDirectory();
  const archive = { url: `file://${testDirectory()}`, maxBytes: 64 << 20, afterS: 300 };
  const kept = { durability: "none", diskTtlS: null, archive } as const;
  const disk = { dataDir, diskBytes: 64 << 20, ...kept };
  const vault = await openVault({ disk });
  const sidecar = await openSidecar();
  const families = [...vaultFamilies(vault.stats()), ...sidecarFamilies(sidecar.status())];
  expect(families.length).toBeGreaterThan(80);
  for (const { name, help } of families) {
    expect(help, name).toMatch(/^[A-Z0-9].*\.$/);
    expect(help, name).not.toMatch(/beyond the limit of names/);
  }
});

test("vault_up is absent before the first try, then 1, and 0 while it is down", async () => {
  const vault = await openVault();
  const kv = openClient(vault);
  const sidecar = await openSidecar({ vaults: { kv, ssm: null } });
  const shown = async (): Promise<string | undefined> => {
    const text = await exposition(sidecarFamilies(sidecar.status()));
    return /^tierkv_sidecar_vault_up\{.*\} (\d)$/m.exec(text)?.[1];
  };
  expect([kv.state, await shown()]).toEqual(["unknown", undefined]);
  await kv.hello(10_000);
  expect(await shown()).toBe("1");
  await vault.close();
  await until(async () => {
    await kv.health(10_000).catch(() => {});
    return (await shown()) === "0";
  }, "the vault to be seen down");
});
