// Owns the proof that a flush which the log could not be read with again is refused.
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { NAME_BYTES_MAX } from "../../../src/base/limits/general.ts";
import { askOnce } from "../../../src/client/vault/ask.ts";
import { FlushLog } from "../../../src/vault/flushes/flush-log.ts";
import { vaultService } from "../../../src/wire/service.ts";
import { NAMESPACE } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { logger, openClient, openVault, SOON_MS } from "../../support/vaults.ts";

test("a name that is too long or a class that does not exist is refused, and the log stays readable", async () => {
  const flushFile = join(testDirectory(), "flushes.json");
  const vault = await openVault({ flushFile });
  const client = openClient(vault);
  const { number } = await client.flush(NAMESPACE, SOON_MS);
  const long = "m".repeat(NAME_BYTES_MAX + 1);
  await expect(client.flush(null, SOON_MS, null, long)).rejects.toThrow("the limit is");
  const at = { name: "the", address: vault.address, security: null, timeoutMs: SOON_MS };
  const third = askOnce(at, vaultService.Flush, { namespace: NAMESPACE, recordClass: 3 });
  await expect(third).rejects.toThrow("expected 1 (kv) or 2 (ssm)");
  const warn = vi.spyOn(logger, "warn");
  expect(new FlushLog(flushFile, logger).number).toBe(number);
  expect(warn).not.toHaveBeenCalled();
});
