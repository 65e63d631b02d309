// Owns the proof of what the flush command says of vaults that do not answer: without a list of flushes they keep what they hold.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { runInside } from "../../support/command-line.ts";
import { keysOf, makeRecords, NAMESPACE } from "../../support/records.ts";
import { closeAfterTest, openClient, openVault, SOON_MS } from "../../support/vaults.ts";
import type { TestVault } from "../../support/vaults.ts";

test("of vaults without pool_key the one that is away is named, the command fails, and it drops at the next", async () => {
  const dir = mkdtempSync(join(tmpdir(), "tierkv-flush-"));
  closeAfterTest({ close: () => rmSync(dir, { recursive: true, force: true }) });
  const records = makeRecords(3);
  const held = async (vault: TestVault): Promise<number> => {
    const { records: found } = await openClient(vault).take(NAMESPACE, keysOf(records), SOON_MS);
    return found.size;
  };
  const [near, away] = [await openVault(), await openVault()];
  for (const vault of [near, away]) await openClient(vault).put(NAMESPACE, records, SOON_MS);
  const config = join(dir, "tierkv.toml");
  writeFileSync(config, `[cluster]\nkv_cold = ["${near.address}", "${away.address}"]\n`);
  const flush = ["flush", "--yes", "--config", config];

  await away.pause();
  const first = await runInside(flush);
  expect(first.exitCode).toBe(1);
  expect(first.stdout).toContain(`kv_cold at ${near.address}: 3 records dropped`);
  const [, named] = /nothing dropped: (.*); what it holds stays until it is flushed/.exec(
    first.stdout,
  ) ?? ["", ""];
  expect(named).toContain(away.address);
  await away.resume();
  expect([await held(near), await held(away)]).toEqual([0, 3]);

  const second = await runInside(flush);
  expect([second.exitCode, second.stdout]).toEqual([
    0,
    expect.stringContaining(`kv_cold at ${away.address}: 3 records dropped`),
  ]);
  expect([await held(near), await held(away)]).toEqual([0, 0]);
});
