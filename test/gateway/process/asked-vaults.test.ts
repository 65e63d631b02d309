// Owns the proof that a gateway asks a vault once this machine's credentials can be read, and says until then why it does not.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { pino } from "pino";
import { expect, onTestFinished, test, vi } from "vitest";
import { HASH_BYTES, NAMESPACE_BYTES, packKeys, toNamespace } from "../../../src/base/block.ts";
import { GATEWAY_VAULT_RETRY_MS } from "../../../src/base/limits/gateway.ts";
import { ColdStore } from "../../../src/client/cold/cold-store.ts";
import { loadConfig } from "../../../src/config/load.ts";
import { askVaults } from "../../../src/gateway/process/asked-vaults.ts";
import { openClosedVault, secretFile, TOKENS } from "../../support/closed-vaults.ts";
import { Pages } from "../../support/lanes.ts";
import { NAMESPACE } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { HAS_VALKEY, ValkeyServer } from "../../support/stores.ts";
import { closeAfterTest, logger, SOON_MS } from "../../support/vaults.ts";

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
  expect(said).toEqual(["a vault is not asked for prompts"]);
  writeFileSync(token, "two tokens\n", { mode: 0o600 });
  await vi.advanceTimersByTimeAsync(2 * GATEWAY_VAULT_RETRY_MS);
  expect(said).toHaveLength(2);
  writeFileSync(token, TOKENS.read, { mode: 0o600 });
  await vi.advanceTimersByTimeAsync(2 * GATEWAY_VAULT_RETRY_MS);
  const [vault, ...others] = asked.vaults();
  expect(others).toEqual([]);
  const keys = packKeys(Buffer.alloc(HASH_BYTES, 1), 0, 0);
  const namespace = toNamespace(Buffer.alloc(NAMESPACE_BYTES, 1));
  expect(await vault!.lookup(namespace, keys, 10_000, 0)).toEqual(Buffer.alloc(1));
  expect(said).toHaveLength(2);
});

test("a Valkey is asked, and a bucket behind it is not, because each request there has a price", async () => {
  const [valkey, bucket] = ["valkey://127.0.0.1:1", "s3://bucket/prefix"];
  const addressesOf = async (kvCold: string[]): Promise<string[]> => {
    const config = secretFile(`[cluster]\nkv_cold = ${JSON.stringify(kvCold)}\n`, "tierkv.toml");
    const asked = await askVaults(loadConfig(config, {}), pino({ level: "silent" }));
    onTestFinished(() => asked.close());
    return asked.vaults().map(({ address }) => address);
  };
  vi.stubEnv("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
  vi.stubEnv("AWS_ACCESS_KEY_ID", "a");
  vi.stubEnv("AWS_SECRET_ACCESS_KEY", "b");
  onTestFinished(() => void vi.unstubAllEnvs());
  expect(await addressesOf([valkey, bucket])).toEqual([valkey]);
  expect(await addressesOf([bucket])).toEqual([bucket]);
});

test.skipIf(!HAS_VALKEY)("a Valkey that stops answering is not asked", async () => {
  const server = await ValkeyServer.start();
  const config = secretFile(`[cluster]\nkv_cold = "${server.address}"\n`, "tierkv.toml");
  const asked = await askVaults(loadConfig(config, {}), pino({ level: "silent" }));
  onTestFinished(() => asked.close());
  const [vault] = asked.vaults();
  const keys = packKeys(Buffer.alloc(HASH_BYTES, 1), 0, 0);
  const namespace = toNamespace(Buffer.alloc(NAMESPACE_BYTES, 1));
  expect(await vault!.lookup(namespace, keys, 10_000, 0)).toEqual(Buffer.alloc(1));
  await server.kill();
  await vi.waitFor(
    async () => {
      await vault!.lookup(namespace, keys, 100, 0).catch(() => null);
      expect(asked.vaults().map(({ isOpen }) => isOpen)).toEqual([true]);
    },
    { timeout: 60_000 },
  );
});

test.skipIf(!HAS_VALKEY)(
  "a Valkey is asked for a prompt's tenant, whose names a flush changes",
  async () => {
    const server = await ValkeyServer.start();
    const config = secretFile(`[cluster]\nkv_cold = "${server.address}"\n`, "tierkv.toml");
    const asked = await askVaults(loadConfig(config, {}), pino({ level: "silent" }));
    onTestFinished(() => asked.close());
    const [vault] = asked.vaults();
    const of = { address: server.address, name: "kv" as const, settings: { class: 1 } };
    const store = closeAfterTest(new ColdStore({ ...of, logger }));
    await store.flush(null, SOON_MS, null, null, 5);
    const pages = await Pages.open(3, 4096);
    await store.store(NAMESPACE, pages.encode(), SOON_MS, 5, 1);
    const held = async (tenant: number): Promise<number | undefined> =>
      (await vault!.lookup(toNamespace(NAMESPACE), pages.keys, SOON_MS, tenant))[0];
    expect([await held(5), await held(0)]).toEqual([0b111, 0]);
  },
);
