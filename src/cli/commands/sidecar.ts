// Owns `tierkv sidecar`: serves the engines of this machine until it is told to stop, or nobody needs it any more.
import type { RecordClass } from "../../block.ts";
import type { Vault } from "../../client/vault.ts";
import type { Config } from "../../config/config.ts";
import type { Family } from "../../exposition/text.ts";
import { armFailpoints, FAILPOINTS_VARIABLE } from "../../failpoint.ts";
import { isLocal, isNames, sharedPath } from "../../hosts.ts";
import { runUntilSignal, startSteps } from "../../lifecycle.ts";
import type { Running } from "../../lifecycle.ts";
import { IDLE_POLL_MS } from "../../limits/general.ts";
import type { Logger } from "../../log.ts";
import { newSidecarCounters } from "../../metrics.ts";
import type { SidecarCounters } from "../../metrics.ts";
import type { RunningSidecar } from "../../sidecar/sidecar.ts";
import type { Ended } from "../../sidecar/trace/decisions.ts";
import type { Stored } from "../../sidecar/trace/request-trace.ts";
import type { Call, Registrar } from "../call.ts";
import { checkArena, checkOpenFiles, loadRecordKeys } from "../conditions.ts";
import { LocalVault } from "../local-vault.ts";
import { localVaultBudget } from "../memory.ts";
import { goBeforeEngines } from "../oom.ts";
import { startOwnPage } from "../page.ts";
import { startScrape } from "../scrape.ts";
import { localVaultAddress, vaultTargets } from "../targets.ts";
import { openExporter } from "../traces.ts";

interface SidecarOptions {
  socket?: string;
  insecureLan?: true;
  exitWhenIdle?: true;
}

export function addSidecar({ program, action }: Registrar): void {
  program
    .command("sidecar")
    .summary("serve the engines of this machine")
    .description(
      "Serves all engines of this machine: takes the blocks they save, brings back those they need, and keeps\n" +
        "what is in between in shared memory. Where no vault is configured it starts one of its own, on this machine.\n" +
        "SIGTERM drains it; a second one ends it at once.",
    )
    .option("--socket <path>", "instead of [sidecar] socket")
    .option(
      "--insecure-lan",
      "instead of [sidecar] metrics_lan: let every machine scrape the metrics",
    )
    .option("--exit-when-idle", "end after [sidecar] idle_exit_s without an engine")
    .addHelpText("after", "\nExample:\n  tierkv sidecar --config /etc/tierkv/tierkv.toml")
    .action(action(serve));
}

async function serve(call: Call<SidecarOptions>): Promise<number> {
  const { socket, insecureLan, exitWhenIdle } = call.options;
  const section = "sidecar";
  const config = call.loadConfig([
    ...(socket === undefined
      ? []
      : [{ option: "--socket", section, name: "socket", text: socket }]),
    ...(insecureLan === undefined
      ? []
      : [{ option: "--insecure-lan", section, name: "metrics_lan", text: "true" }]),
  ]);
  checkOpenFiles();
  checkArena(config);
  await loadRecordKeys(config);
  const logger = call.createLogger("sidecar", config);
  armFailpoints({
    text: call.io.env[FAILPOINTS_VARIABLE],
    isOnNetwork: [...config.cluster.kvCold, ...config.cluster.ssmCold].some(
      (vault) => !isLocal(vault),
    ),
    logger,
  });
  goBeforeEngines();
  const idle = new AbortController();
  return runUntilSignal(
    async () => {
      const parts = await makeParts(config, logger);
      const running = await start(parts);
      if (exitWhenIdle === true) abortWhenIdle(parts, config.sidecar.idleExitS, idle);
      const { kvCold, ssmCold } = config.cluster;
      const names = [...kvCold, ...ssmCold].filter(({ text }) => isNames(text));
      const vaults = vaultTargets(config).map(({ name, address }) => `${name} ${address}`);
      vaults.push(...names.map(({ text }) => text));
      const serving = { socket: config.sidecar.socket, vaults: vaults.join(", ") };
      logger.info(serving, "sidecar ready");
      if (call.isJson) call.print({ event: "ready", socket: serving.socket }, []);
      return running;
    },
    { logger, stop: idle.signal },
  );
}

interface Parts {
  clients: Running;
  /** null: no traces are wanted. */
  traces: Traces | null;
  localVault: LocalVault | null;
  startSidecar(): Promise<RunningSidecar>;
  startScrape(): Promise<Running | undefined>;
  startPage(): Promise<Running | undefined>;
  registerEngines(): Promise<Running | undefined>;
  /** Once it was started. */
  sidecar: RunningSidecar | null;
}

async function makeParts(config: Config, logger: Logger): Promise<Parts> {
  const { VaultClient } = await import("../../client/vault-client.ts");
  const { Waker } = await import("../../client/wake.ts");
  const { SharedVault } = await import("../../client/shared-vault.ts");
  const { accessTo } = await import("../credentials.ts");
  const { startSidecar } = await import("../../sidecar/sidecar.ts");
  const { sidecarFamilies } = await import("../../exposition/sidecar.ts");
  const counters = newSidecarCounters();
  const waker = new Waker(config.cluster.wake, logger);
  const connect = (name: RecordClass): Promise<Vault[]> => {
    const targets = vaultTargets(config).filter(({ classes }) => classes.includes(name));
    const opened = targets.map(async (target): Promise<Vault> => {
      const { address } = target;
      if (sharedPath(address) !== null) {
        const { maxBytes } = config.vault;
        const size = { maxBytes: localVaultBudget(maxBytes), mustFit: maxBytes !== null };
        const { coherence, host, group } = config.cluster;
        return SharedVault.open({ address, name, coherence, host, group, logger, ...size });
      }
      const { lanes, addresses: locals } = config.sidecar;
      const access = accessTo(config, target, logger);
      const onWanted = waker.callOf(address);
      return new VaultClient({ address, name, logger, lanes, locals, onWanted, ...access });
    });
    return Promise.all(opened);
  };
  const traces = await makeTraces(config, logger, counters);
  const vaults = { kv: await connect("kv"), ssm: await connect("ssm") };
  const { membersOf } = await import("../sources.ts");
  const members = membersOf(config, logger, waker, (count) =>
    counters.add("listings_refused", count),
  );
  const clients: Running = {
    close(): Promise<void> {
      for (const client of [...vaults.kv, ...vaults.ssm]) client.close();
      return Promise.resolve();
    },
  };
  const parts: Parts = {
    clients,
    localVault: makeLocalVault(config, logger, counters),
    traces,
    startSidecar: () => {
      const { onEnded = null, onStored = null } = traces ?? {};
      const heard = { onEnded, onStored };
      return startSidecar({ config, vaults, members, logger, counters, ...heard });
    },
    startScrape: () => {
      const read = (): Family[] =>
        parts.sidecar === null ? [] : sidecarFamilies(parts.sidecar.status());
      // A vault that is down is no reason to start the sidecar again.
      return startScrape("sidecar", config.sidecar.metricsListen, logger, read, () => null);
    },
    startPage: () => startOwnPage(config, logger, () => parts.sidecar),
    async registerEngines() {
      if (config.etcd.engineHost === null) return undefined;
      const { registerEngines } = await import("../registered-engines.ts");
      return registerEngines(config, logger);
    },
    sidecar: null,
  };
  return parts;
}

/** What is heard of requests and saves, and where it goes. */
interface Traces {
  exporter: Running;
  onEnded(ended: Ended): void;
  onStored(stored: Stored): void;
}

async function makeTraces(
  config: Config,
  logger: Logger,
  counters: SidecarCounters,
): Promise<Traces | null> {
  const exporter = await openExporter("sidecar", config.sidecar.otlpEndpoint, logger, counters);
  if (exporter === null) return null;
  const { spanOfStore, spansOf } = await import("../../exposition/spans.ts");
  return {
    exporter,
    onEnded: (ended) => exporter.add(spansOf(ended)),
    onStored: (stored) => exporter.add([spanOfStore(stored)]),
  };
}

function makeLocalVault(
  config: Config,
  logger: Logger,
  counters: SidecarCounters,
): LocalVault | null {
  const address = localVaultAddress(config);
  if (address === null) return null;
  const maxBytes = localVaultBudget(config.vault.maxBytes);
  const { otlpEndpoint } = config.sidecar;
  const { path: configPath } = config;
  return new LocalVault({ address, maxBytes, configPath, otlpEndpoint, logger, counters });
}

/**
 * The vault of this machine starts last, when it is certain that we own the socket, but is closed after the sidecar,
 * which brings it what is still being saved.
 */
function start(parts: Parts): Promise<Running> {
  const { localVault } = parts;
  return startSteps([
    { name: "vault of this machine", run: () => Promise.resolve(localVault ?? undefined) },
    { name: "traces", run: () => Promise.resolve(parts.traces?.exporter) },
    { name: "vault clients", run: () => Promise.resolve(parts.clients) },
    { name: "sidecar", run: async () => (parts.sidecar = await parts.startSidecar()) },
    {
      name: "start of the vault of this machine",
      async run() {
        await localVault?.start();
        return undefined;
      },
    },
    { name: "metrics endpoint", run: () => parts.startScrape() },
    { name: "page", run: () => parts.startPage() },
    { name: "engines in etcd", run: () => parts.registerEngines() },
  ]);
}

function abortWhenIdle(parts: Parts, idleExitS: number, idle: AbortController): void {
  const timer = setInterval(() => {
    if ((parts.sidecar?.idleMs() ?? 0) < idleExitS * 1000) return;
    clearInterval(timer);
    idle.abort(`no engine for ${idleExitS} s`);
  }, IDLE_POLL_MS);
}
