// Owns the proof that a rehearsal plays its restores to the end, is seen nowhere, leaves nothing, and ends when told.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { REHEARSAL_RESTORES } from "../../../src/base/limits/general.ts";
import type { Logger } from "../../../src/base/log.ts";
import type { Config } from "../../../src/config/config.ts";
import { startRehearsal } from "../../../src/sidecar/process/rehearsal.ts";
import { Restorer } from "../../../src/sidecar/restore/restore.ts";
import { testConfig, testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, logger, until } from "../../support/vaults.ts";

afterEach(() => vi.unstubAllEnvs());

/** Begins a rehearsal in a folder for temporary files of its own; `said`: what it logs. */
function begin(config: Partial<Config> = {}) {
  const folder = testDirectory();
  vi.stubEnv("TMPDIR", folder);
  const said: string[] = [];
  const debug = (_fields: object, text: string): void => void said.push(text);
  const log = { ...logger, debug } as unknown as Logger;
  const base = testConfig({ socket: join(folder, "nobody.sock") });
  const rehearsal = closeAfterTest(startRehearsal({ ...base, ...config }, log));
  return { rehearsal, folder, said };
}

test("all restores are played, whatever is configured, and nothing is left", async () => {
  const released = vi.spyOn(Restorer.prototype, "release");
  const { receipts, turboQuant } = testConfig({ socket: "/nonexistent" });
  const dir = testDirectory();
  const { folder, said } = begin({
    receipts: { ...receipts, when: "always", dir },
    turboQuant: { ...turboQuant, enabled: true, kvDim: 256 },
  });
  await until(() => said.length > 0, "the end of the rehearsal");
  expect(said).toEqual(["restores were rehearsed"]);
  const loaded = released.mock.calls.filter(([{ tokens }]) => tokens > 0);
  expect(loaded).toHaveLength(REHEARSAL_RESTORES);
  expect(readdirSync(folder)).toEqual([]);
  expect(readdirSync(dir)).toEqual([]);
});

test("a process that ends does not wait for it", async () => {
  const { rehearsal, folder, said } = begin();
  await rehearsal.close();
  expect(said).toEqual(["restores were not rehearsed"]);
  expect(readdirSync(folder)).toEqual([]);
});
