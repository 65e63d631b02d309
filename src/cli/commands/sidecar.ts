// Owns `tierkv sidecar`: serves the engines of this machine until it is told to stop.
import type { RecordClass } from "../../block.ts";
import type { VaultClient } from "../../client/vault-client.ts";
import type { Config } from "../../config/config.ts";
import { runUntilSignal, startSteps } from "../../lifecycle.ts";
import type { Running } from "../../lifecycle.ts";
import type { Logger } from "../../log.ts";
import { newSidecarCounters } from "../../metrics.ts";
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
  const targets = vaultTargets(config);
  if (targets.length === 0) {
    logger.warn(
      "no vault is configured, so nothing outlives this process: write [cluster] kv_cold",
    );
  }
  return runUntilSignal(
    async () => {
      const running = await start(config, logger);
      const vaults = targets.map(({ role, address }) => `${role} ${address}`).join(", ");
      const { socket } = config.sidecar;
      logger.info({ socket, vaults }, "sidecar ready");
      if (call.isJson) call.print({ event: "ready", socket }, []);
      return running;
    },
    { logger },
  );
}

async function start(config: Config, logger: Logger): Promise<Running> {
  const { VaultClient } = await import("../../client/vault-client.ts");
  const { startSidecar } = await import("../../sidecar/sidecar.ts");
  const connect = (name: RecordClass): VaultClient | null => {
    const target = vaultTargets(config).find(({ recordClass }) => recordClass === name);
    return target === undefined ? null : new VaultClient({ address: target.address, name, logger });
  };
  const vaults = { kv: connect("kv"), ssm: connect("ssm") };
  const clients: Running = {
    close(): Promise<void> {
      vaults.kv?.close();
      vaults.ssm?.close();
      return Promise.resolve();
    },
  };
  const counters = newSidecarCounters();
  return startSteps([
    { name: "vault clients", run: () => Promise.resolve(clients) },
    { name: "sidecar", run: () => startSidecar({ config, vaults, logger, counters }) },
  ]);
}
