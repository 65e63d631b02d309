// Owns the process of a gateway: its checks, the steps of its start in order, and its end.
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { isLocal, sourceOf } from "../../base/hosts.ts";
import { catchSignals, runUntilSignal, startSteps } from "../../base/lifecycle.ts";
import { GATEWAY_END_MS, GATEWAY_START_MS } from "../../base/limits/gateway.ts";
import type { Logger } from "../../base/log.ts";
import { checkOpenFiles } from "../../config/conditions.ts";
import type { Config } from "../../config/config.ts";
import { placeOf } from "../../config/load.ts";
import { startScrape } from "../../exposition/telemetry.ts";
import type { Look } from "../engines/discovery.ts";
import { startGateway } from "../gateway.ts";
import type { RunningGateway, Scrape, Vaults } from "../gateway.ts";
import { awaitVaults } from "./awaited-vaults.ts";
import { boundYoungGeneration } from "./young-generation.ts";

export interface GatewayProcess {
  config: Config;
  /** Makes the logger, after the checks that are reported as errors of the command. */
  createLogger: () => Logger;
  /** Called once the gateway serves, with its addresses. */
  onReady: (ready: Pick<RunningGateway, "url" | "extProc">) => void;
}

/** Serves until a signal; returns the exit code. Throws the first check that fails. */
export async function serveGateway(options: GatewayProcess): Promise<number> {
  const { config } = options;
  const signals = catchSignals();
  const { engines: listed, discover, sequences } = config.gateway;
  const isAlone = listed.length === 0 && discover === null && !sequences;
  checkOpenFiles();
  boundYoungGeneration();
  const logger = options.createLogger();
  if (!isLocal(config.gateway.listen) && config.gateway.lan) {
    logger.warn("[gateway] lan = true: every machine that reaches it may use the engines");
  }
  let vaults: Vaults = () => [];
  let look = isAlone ? await neighboursOf(config, logger) : null;
  const steps = [
    {
      name: "vaults",
      async run() {
        if (config.gateway.lookupMs === 0) return undefined;
        const asked = await awaitVaults(config, logger);
        ({ vaults } = asked);
        return asked;
      },
    },
    {
      name: "engines in etcd",
      async run() {
        if (discover === null || sourceOf(discover.text) !== "etcd") return undefined;
        const { followEngines } = await import("../../cluster/registered-engines.ts");
        const registered = followEngines(config, logger);
        ({ look } = registered);
        return registered;
      },
    },
    {
      name: "gateway",
      timeoutMs: GATEWAY_START_MS,
      run: async () => {
        const { metricsListen } = config.gateway;
        const scrape: Scrape = (read, trouble) =>
          startScrape("gateway", metricsListen, logger, read, trouble);
        const gateway = await startGateway(config.gateway, logger, look, vaults, scrape);
        const { url, preset, extProc, engines } = gateway;
        logger.info({ url, preset, extProc, engines }, "gateway ready");
        options.onReady({ url, extProc });
        return gateway;
      },
    },
  ];
  // More than the gateway's own time, so that it logs the answers that it cuts.
  const { leaveMs, drainMs } = config.gateway;
  const drainTimeoutMs = leaveMs + drainMs + GATEWAY_END_MS;
  return runUntilSignal(() => startSteps(steps), { logger, drainTimeoutMs, signals });
}

/** Finds engines through this host's sidecar, because the configuration names none. */
async function neighboursOf(config: Config, logger: Logger): Promise<Look> {
  const { Neighbours } = await import("../../cluster/neighbours.ts");
  const neighbours = new Neighbours(config.sidecar.socket, logger);
  const found = await neighbours.look().catch((error: unknown) => {
    throw noEngines(config, toTierkvError(error).message);
  });
  if (found.length === 0) logger.warn("the sidecar of this host knows no engine yet");
  return () => neighbours.look();
}

function noEngines(config: Config, reason: string): TierkvError {
  return new TierkvError("CONFIG_CONFLICT", {
    where: placeOf(config, ["gateway", "engines"]),
    key: "[gateway] engines",
    value: "[]",
    reason: `no engine is named, and none found by this host's sidecar: ${reason}`,
    fix: 'start an engine with tierKV here, or write engines = ["127.0.0.1:8000"] below [gateway]',
  });
}
