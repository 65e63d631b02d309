// Owns the proof that docs/metrics.md is what the processes show.
import { expect, test } from "vitest";
import { sidecarFamilies } from "../../src/exposition/sidecar.ts";
import { vaultFamilies } from "../../src/exposition/vault.ts";
import { Figures } from "../../src/gateway/counts/figures.ts";
import { renderMetricsPage, rowsOf, rowsOfText } from "../support/metrics-page.ts";
import type { Row } from "../support/metrics-page.ts";
import { openRestored } from "../support/pages.ts";
import { testDirectory } from "../support/sidecars.ts";
import { openVault } from "../support/vaults.ts";

async function gatewayRows(): Promise<Row[]> {
  const engine = { name: "e", isUp: true, inFlight: 0 };
  const fleet = { engines: [engine], waiting: 0 } as unknown as ConstructorParameters<
    typeof Figures
  >[0];
  const index = { blocks: () => 0, foundBlocks: 0 } as unknown as ConstructorParameters<
    typeof Figures
  >[2];
  const following = { feedOf: () => null, agreementOf: () => null, blocksOf: () => 0 };
  const figures = new Figures(fleet, following, index);
  figures.began("e", 200, 1);
  figures.refused("r");
  figures.retried("e");
  figures.broken("e");
  figures.lookedUp("found", 1);
  figures.handedOver("e", true);
  figures.tokenized("engine");
  return rowsOfText(await figures.text());
}

test("docs/metrics.md is current; renew it with `npx vitest run -c test/vitest.config.ts test/exposition/sidecar.page.test.ts -u`", async () => {
  const disk = {
    dataDir: testDirectory(),
    diskBytes: 64 << 20,
    durability: "none",
    diskTtlS: null,
    archive: { url: `file://${testDirectory()}`, maxBytes: 64 << 20, afterS: 300 },
  } as const;
  const vault = await openVault({ disk });
  const { sidecar } = await openRestored();
  const page = renderMetricsPage([
    {
      title: "Sidecar",
      text: "`[sidecar] metrics_listen`. The time that restores saved is `spared_prefill_seconds` minus `restoring_seconds`.",
      rows: rowsOf(sidecarFamilies(sidecar.status())),
    },
    {
      title: "Vault",
      text: "`[vault] metrics_listen`. Disk metrics need `[vault] data_dir`, archive metrics need `[vault] archive`.",
      rows: rowsOf(vaultFamilies(vault.stats())),
    },
    { title: "Gateway", text: "`/metrics` of `[gateway] listen`.", rows: await gatewayRows() },
  ]);
  await expect(page).toMatchFileSnapshot("../../docs/metrics.md");
});
