// Owns the proof that a gateway loads no client that it does not use, and asks this machine's own vault once that is there.
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { HASH_BYTES, packKeys, toNamespace } from "../../../src/base/block.ts";
import { GATEWAY_VAULT_RETRY_MS } from "../../../src/base/limits/gateway.ts";
import { loadConfig } from "../../../src/config/load.ts";
import { awaitVaults } from "../../../src/gateway/process/awaited-vaults.ts";
import { secretFile } from "../../support/closed-vaults.ts";
import { NAMESPACE } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { startOwnVault } from "../../support/vault-process.ts";
import { logger, SOON_MS } from "../../support/vaults.ts";

test("this machine's own vault is asked once its socket is there", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  const socket = join(testDirectory(), "sidecar.sock");
  const config = loadConfig(secretFile(`[sidecar]\nsocket = "${socket}"\n`, "tierkv.toml"), {});
  const asked = await awaitVaults(config, logger);
  onTestFinished(() => asked.close());
  await vi.advanceTimersByTimeAsync(2 * GATEWAY_VAULT_RETRY_MS);
  expect(asked.vaults()).toEqual([]);
  const { address } = await startOwnVault(`unix:${socket}.vault`);
  await vi.advanceTimersByTimeAsync(2 * GATEWAY_VAULT_RETRY_MS);
  await vi.waitFor(() => expect(asked.vaults()).toHaveLength(1), { timeout: SOON_MS });
  const [vault] = asked.vaults();
  expect(vault!.address).toBe(address);
  const keys = packKeys(Buffer.alloc(HASH_BYTES, 1), 0, 0);
  expect(await vault!.lookup(toNamespace(NAMESPACE), keys, SOON_MS, 0)).toEqual(Buffer.alloc(1));
});

test("a gateway loads clients of TLS, of vaults and of terminals only where it uses them", () => {
  const program = `
    import { createRequire } from "node:module";
    await import(process.argv[1]);
    const names = Object.keys(createRequire(import.meta.url).cache).join("\\n");
    const found = [...names.matchAll(/node_modules\\/((?:@[^/]+\\/)?[^/]+)/g)].map(([, name]) => name);
    console.log(JSON.stringify([...new Set(found)]));`;
  const main = join(import.meta.dirname, "../../../dist/gateway/process/serve.js");
  const argv = ["--input-type=module", "-e", program, main];
  const loaded = JSON.parse(execFileSync("node", argv, { encoding: "utf8" })) as string[];
  expect(loaded).toContain("pino");
  for (const name of ["undici", "@grpc/grpc-js", "@grpc/proto-loader", "pino-pretty"]) {
    expect(loaded, name).not.toContain(name);
  }
});
