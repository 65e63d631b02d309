// Owns the proof that a gateway asks a vault once this machine's credentials can be read, and says until then why it does not.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { pino } from "pino";
import { expect, onTestFinished, test, vi } from "vitest";
import { HASH_BYTES, NAMESPACE_BYTES, packKeys, toNamespace } from "../../../src/base/block.ts";
import { GATEWAY_VAULT_RETRY_MS } from "../../../src/base/limits/gateway.ts";
import { loadConfig } from "../../../src/config/load.ts";
import { askVaults } from "../../../src/gateway/process/asked-vaults.ts";
import { openClosedVault, secretFile, TOKENS } from "../../support/closed-vaults.ts";
import { testDirectory } from "../../support/sidecars.ts";

test("a vault whose token comes later is asked from then on", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  const { address, caPem } = await openClosedVault();
  const token = join(testDirectory(), "token");
  const config = secretFile(
    `[cluster]\nkv_cold = ["${address}"]\ntls_ca = "${secretFile(caPem)}"\ntoken = "${token}"\n`,
    "tierkv.toml",
  );
  const said: string[] = [];
  const write = (line: string): void => void said.push((JSON.parse(line) as { msg: string }).msg);
  const asked = await askVaults(loadConfig(config, {}), pino({ level: "warn" }, { write }));
  onTestFinished(() => asked.close());
  await vi.advanceTimersByTimeAsync(3 * GATEWAY_VAULT_RETRY_MS);
  expect(asked.vaults()).toEqual([]);
  expect(said).toEqual(["a vault is not asked what it holds"]);
  writeFileSync(token, "two tokens\n", { mode: 0o600 });
  await vi.advanceTimersByTimeAsync(2 * GATEWAY_VAULT_RETRY_MS);
  expect(said).toHaveLength(2);
  writeFileSync(token, TOKENS.read, { mode: 0o600 });
  await vi.advanceTimersByTimeAsync(2 * GATEWAY_VAULT_RETRY_MS);
  const [vault, ...others] = asked.vaults();
  expect(others).toEqual([]);
  const keys = packKeys(Buffer.alloc(HASH_BYTES, 1), 0, 0);
  const namespace = toNamespace(Buffer.alloc(NAMESPACE_BYTES, 1));
  expect(await vault!.lookup(namespace, keys, 10_000)).toEqual(Buffer.alloc(1));
  expect(said).toHaveLength(2);
});
