// Owns the proof that `tierkv status` reads a sidecar's deepest answer: a vault with an archive behind its disk.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { SidecarLink } from "../../../src/control/sidecar-link.ts";
import { ArchivedVault } from "../../support/archives.ts";
import { runInside } from "../../support/command-line.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, SOON_MS, until } from "../../support/vaults.ts";

test("a sidecar whose vault has an archive answers, and tells of it", async () => {
  const folder = join(testDirectory(), "archive");
  mkdirSync(folder, { mode: 0o700 });
  const vault = new ArchivedVault(`file://${folder}`);
  await vault.start();
  const sidecar = await openSidecar({ vaults: { kv: vault.client, ssm: null } });
  const link = new SidecarLink(sidecar.socketPath);
  closeAfterTest(link);
  await link.hello(SOON_MS);
  // The first status asks the vault; later ones have its answer.
  await until(
    async () => (await link.status(SOON_MS)).vaults.kv[0]?.seen?.disk?.archive !== undefined,
    "the archive to be seen",
  );
  const config = join(testDirectory(), "tierkv.toml");
  const cluster = `[cluster]\nkv_cold = "${vault.client.address}"\n`;
  writeFileSync(config, `${cluster}[sidecar]\nsocket = "${sidecar.socketPath}"\n`);
  const { exitCode, stdout } = await runInside(["status", "--config", config]);
  expect([exitCode, stdout]).toEqual([0, expect.stringContaining(" in the archive, ")]);
});
