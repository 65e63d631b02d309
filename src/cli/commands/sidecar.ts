import type { RecordClass } from "../../block.ts";
import type { VaultClient } from "../../client/vault-client.ts";
import type { Config } from "../../config/config.ts";
import { runUntilSignal } from "../../lifecycle.ts";
import type { Running } from "../../lifecycle.ts";
import type { Logger } from "../../log.ts";
import { newSidecarCounters } from "../../metrics.ts";
// Owns `tierkv sidecar`: serves the engines of this machine until it is told to stop.
import type { Call, Registrar } from "../call.ts";
import { vaultTargets } from "../targets.ts";

export function addSidecar({ program, action }: Registrar): void {
  program
    .command("sidecar")
    .summary("serve the engines of this machine")
    .description(
      "Serves all engines of this machine: takes the blocks they save, brings back those they need, and keeps\n" +
        "what is in between in shared memory. SIGTERM drains it; a second one ends it at once.",
    )
    .addHelpText("after", "\nExample:\n  tierkv sidecar --config /etc/tierkv/tierkv.toml")
    .action(action(serve));
}

async function serve(call: Call): Promise<number> {
  const config = call.loadConfig();
  const logger = call.createLogger("sidecar", config);
  return runUntilSignal(
    async () => {
      const { socketPath, running } = await start(config, logger);
      logger.info({ socket: socketPath, vaults: vaultTexts(config) }, "sidecar ready");
      if (call.isJson) call.print({ event: "ready", socket: socketPath }, []);
      return running;
    },
    { logger },
  );
}

async function start(
  config: Config,
  logger: Logger,
): Promise<{ socketPath: string; running: Running }> {
  const { VaultClient } = await import("../../client/vault-client.ts");
  const { startSidecar } = await import("../../sidecar/sidecar.ts");
  const connect = (name: RecordClass): VaultClient | null => {
    const target = vaultTargets(config).find(({ recordClass }) => recordClass === name);
    return target === undefined ? null : new VaultClient({ address: target.address, name, logger });
  };
  const vaults = { kv: connect("kv"), ssm: connect("ssm") };
  if (vaults.kv === null && vaults.ssm === null) {
    logger.warn(
      "no vault is configured, so nothing outlives this process: write [cluster] kv_cold",
    );
  }
  const closeClients = (): void => {
    vaults.kv?.close();
    vaults.ssm?.close();
  };
  try {
    const sidecar = await startSidecar({ config, vaults, logger, counters: newSidecarCounters() });
    const close = async (): Promise<void> => {
      await sidecar.close();
      closeClients();
    };
    return { socketPath: sidecar.socketPath, running: { close } };
  } catch (error) {
    closeClients();
    throw error;
  }
}

function vaultTexts(config: Config): string {
  return vaultTargets(config)
    .map(({ role, address }) => `${role} ${address}`)
    .join(", ");
}
