// Owns `tierkv vault`: serves the records of one class until it is told to stop.
import { totalmem } from "node:os";
import { runUntilSignal, startSteps } from "../../lifecycle.ts";
import { newVaultCounters } from "../../metrics.ts";
import type { Call, Registrar } from "../call.ts";
import { vaultClass } from "../targets.ts";

export function addVault({ program, action }: Registrar): void {
  program
    .command("vault")
    .summary("serve a vault on this machine")
    .description(
      "Serves a vault: memory that holds encoded blocks for engines on the LAN. [cluster] role says of which class:\n" +
        "kv_cold (attention KV) or ssm_cold (recurrent state). SIGTERM drains it; a second one ends it at once.",
    )
    .addHelpText("after", "\nExample:\n  tierkv vault --config /etc/tierkv/tierkv.toml")
    .action(action(serve));
}

async function serve(call: Call): Promise<number> {
  const config = call.loadConfig();
  const recordClass = vaultClass(config);
  const logger = call.createLogger("vault", config);
  const { maxBytes } = config.vault;
  if (maxBytes > totalmem()) {
    const machine = { maxBytes, machineBytes: totalmem() };
    logger.warn(machine, "[vault] max_bytes is more than this machine has: lower it");
  }
  const { startVault } = await import("../../vault/server.ts");
  const listen = async (): Promise<Awaited<ReturnType<typeof startVault>>> => {
    const counters = newVaultCounters();
    const vault = await startVault({ config: config.vault, recordClass, logger, counters });
    const { address } = vault;
    logger.info({ address, class: recordClass, maxBytes }, "vault ready");
    if (call.isJson) call.print({ event: "ready", address, class: recordClass, maxBytes }, []);
    return vault;
  };
  return runUntilSignal(() => startSteps([{ name: "vault", run: listen }]), { logger });
}
