// Owns when the client of vaults is loaded: at once where vaults are configured, else when this machine's own one is there.
import { existsSync } from "node:fs";
import { unixPath } from "../../base/hosts.ts";
import { GATEWAY_VAULT_RETRY_MS } from "../../base/limits/gateway.ts";
import type { Logger } from "../../base/log.ts";
import { localVaultAddress } from "../../cluster/targets.ts";
import type { Config } from "../../config/config.ts";
import type { AskedVaults } from "./asked-vaults.ts";

/** Looks for the own vault's socket at an interval; a gateway without a vault so stays without gRPC, which takes megabytes. */
export async function awaitVaults(config: Config, logger: Logger): Promise<AskedVaults> {
  const ask = async (): Promise<AskedVaults> => {
    const { askVaults } = await import("./asked-vaults.ts");
    return await askVaults(config, logger);
  };
  const own = localVaultAddress(config);
  const path = own === null ? null : unixPath(own);
  if (path === null || existsSync(path)) return await ask();
  let asked: AskedVaults | null = null;
  let asking: Promise<void> = Promise.resolve();
  const timer = setInterval(() => {
    if (!existsSync(path)) return;
    clearInterval(timer);
    asking = ask().then(
      (found) => void (asked = found),
      (error: unknown) => logger.warn({ err: error }, "vaults cannot be asked for prompts"),
    );
  }, GATEWAY_VAULT_RETRY_MS);
  timer.unref();
  return {
    vaults: () => asked?.vaults() ?? [],
    async close() {
      clearInterval(timer);
      await asking;
      await asked?.close();
    },
  };
}
