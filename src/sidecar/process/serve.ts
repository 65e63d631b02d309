// Owns the process of a sidecar: its checks, the steps of its start in order, and its end.
import type { RecordClass } from "../../base/block.ts";
import { armFailpoints } from "../../base/failpoint.ts";
import { isLocal, isNames, storeKind } from "../../base/hosts.ts";
import { catchSignals, runUntilSignal, startSteps } from "../../base/lifecycle.ts";
import type { Running } from "../../base/lifecycle.ts";
import { IDLE_POLL_MS } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import { newSidecarCounters } from "../../base/metrics.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import type { BlockStore } from "../../client/source.ts";
import { localVaultAddress, vaultTargets } from "../../cluster/targets.ts";
import { checkArena, checkOpenFiles, loadRecordKeys } from "../../config/conditions.ts";
import type { Config } from "../../config/config.ts";
import { openExporter, startScrape } from "../../exposition/telemetry.ts";
import type { Family } from "../../exposition/text.ts";
import { startOwnPage } from "../../page/process/serve.ts";
import { localVaultBudget } from "../../vault/process/memory.ts";
import type { RunningSidecar, SidecarOptions } from "../sidecar.ts";
import { LocalVault } from "./local-vault.ts";
import { goBeforeEngines } from "./oom.ts";

export interface SidecarProcess {
  config: Config;
  /** Makes the logger, after the checks that are reported as errors of the command. */
  createLogger: () => Logger;
  /** Text of the failpoints to arm; undefined: none. */
  failpoints: string | undefined;
  /** Whether it ends after [sidecar] idle_exit_s without an engine. */
  exitWhenIdle: boolean;
  /** Called once the sidecar serves, with the path of its socket. */
  onReady: (socket: string) => void;
}

/** Serves until a signal, or until idle; returns the exit code. Throws the first check that fails. */
export async function serveSidecar(options: SidecarProcess): Promise<number> {
  const { config, exitWhenIdle } = options;
  const signals = catchSignals();
  checkOpenFiles();
  checkArena(config);
  await loadRecordKeys(config);
  const logger = options.createLogger();
  const { kvCold, ssmCold } = config.cluster;
  armFailpoints({
    text: options.failpoints,
    isOnNetwork: [...kvCold, ...ssmCold].some((vault) => !isLocal(vault)),
    logger,
  });
  goBeforeEngines();
  const idle = new AbortController();
  const started: Started = { sidecar: null };
  return runUntilSignal(
    async () => {
      const running = await start(options, logger, started);
      if (exitWhenIdle) abortWhenIdle(started, config.sidecar.idleExitS, idle);
      const names = [...kvCold, ...ssmCold].filter(({ text }) => isNames(text));
      const vaults = vaultTargets(config).map(({ name, address }) => `${name} ${address}`);
      vaults.push(...names.map(({ text }) => text));
      const { socket } = config.sidecar;
      logger.info({ socket, vaults: vaults.join(", ") }, "sidecar ready");
      options.onReady(socket);
      return running;
    },
    { logger, stop: idle.signal, signals },
  );
}

/** The running sidecar; null: not started yet. */
interface Started {
  sidecar: RunningSidecar | null;
}

/**
 * The vault of this machine starts after the sidecar, which must own the socket first, but is closed after it, because the
 * sidecar still sends it pending saves.
 */
async function start(
  { config }: SidecarProcess,
  logger: Logger,
  started: Started,
): Promise<Running> {
  const { startSidecar } = await import("../sidecar.ts");
  const { sidecarFamilies } = await import("../../exposition/sidecar.ts");
  const counters = newSidecarCounters();
  const { vaults, members } = await connected(config, logger, counters);
  const traces = await makeTraces(config, logger, counters);
  const localVault = makeLocalVault(config, logger, counters);
  const clients: Running = {
    close(): Promise<void> {
      for (const client of [...vaults.kv, ...vaults.ssm]) client.close();
      return Promise.resolve();
    },
  };
  const families = (): Family[] =>
    started.sidecar === null ? [] : sidecarFamilies(started.sidecar.status());
  const { metricsListen } = config.sidecar;
  return startSteps([
    { name: "vault of this machine", run: () => Promise.resolve(localVault ?? undefined) },
    { name: "traces", run: () => Promise.resolve(traces?.exporter) },
    { name: "vault clients", run: () => Promise.resolve(clients) },
    {
      name: "sidecar",
      async run() {
        const options = { config, vaults, members, logger, counters, ...traces?.hears };
        return (started.sidecar = await startSidecar(options));
      },
    },
    {
      name: "start of the vault of this machine",
      async run() {
        await localVault?.start();
        return undefined;
      },
    },
    {
      name: "metrics endpoint",
      // Never unhealthy, because a vault that is down is no reason to restart the sidecar.
      run: () => startScrape("sidecar", metricsListen, logger, families, () => null),
    },
    { name: "page", run: () => startOwnPage(config, logger, () => started.sidecar) },
    {
      name: "engines in etcd",
      async run() {
        if (config.etcd.engineHost === null) return undefined;
        const { registerEngines } = await import("../../cluster/registered-engines.ts");
        return registerEngines(config, logger);
      },
    },
  ]);
}

/** Makes the clients of the configured vaults, and the source of vaults behind names. */
async function connected(
  config: Config,
  logger: Logger,
  counters: SidecarCounters,
): Promise<Required<Pick<SidecarOptions, "vaults" | "members">>> {
  const { Waker } = await import("../../client/vault/wake.ts");
  const { membersOf } = await import("../../cluster/sources.ts");
  const { openSource } = await import("../../client/sources.ts");
  const { lastingClient } = await import("../../cluster/vault-link.ts");
  const waker = new Waker(config.cluster.wake, logger);
  const { maxBytes } = config.vault;
  const size = { maxBytes: localVaultBudget(maxBytes), mustFit: maxBytes !== null };
  const connect = async (name: RecordClass): Promise<BlockStore[]> => {
    const targets = vaultTargets(config).filter(({ classes }) => classes.includes(name));
    const all = await Promise.all(
      targets.map((target) => {
        const vault = (): BlockStore => lastingClient(config, () => target, name, logger, waker);
        return openSource({ address: target.address, name, config, logger, size, vault });
      }),
    );
    return await withBucket(all, logger);
  };
  const onRefused = (count: number): void => counters.add("listings_refused", count);
  return {
    vaults: { kv: await connect("kv"), ssm: await connect("ssm") },
    members: membersOf(config, logger, waker, onRefused),
  };
}

/** Puts a bucket behind the one other place beside shared memory. */
async function withBucket(all: BlockStore[], logger: Logger): Promise<BlockStore[]> {
  const far = all.filter(({ tier }) => tier !== "shared");
  const bucket = far.find(({ address }) => storeKind(address) === "s3");
  const near = far.find((one) => one !== bucket);
  if (bucket === undefined || near === undefined) return all;
  const { Tiers } = await import("../../client/cold/tiers.ts");
  const tiers = new Tiers(near, bucket, logger);
  return all.flatMap((one) => (one === bucket ? [] : one === near ? [tiers] : [one]));
}

/** The trace exporter, and the callbacks that feed it. */
interface Traces {
  exporter: Running;
  hears: Pick<SidecarOptions, "onEnded" | "onStored">;
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
    hears: {
      onEnded: (ended) => exporter.add(spansOf(ended)),
      onStored: (stored) => exporter.add([spanOfStore(stored)]),
    },
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

function abortWhenIdle(started: Started, idleExitS: number, idle: AbortController): void {
  const timer = setInterval(() => {
    if ((started.sidecar?.idleMs() ?? 0) < idleExitS * 1000) return;
    clearInterval(timer);
    idle.abort(`no engine for ${idleExitS} s`);
  }, IDLE_POLL_MS);
}
