// Owns the process of a vault: its checks, the steps of its start in order, and its end.
import { totalmem } from "node:os";
import type { VaultClass } from "../../base/block.ts";
import { catchSignals, runUntilSignal, startSteps } from "../../base/lifecycle.ts";
import type { Running } from "../../base/lifecycle.ts";
import type { Logger } from "../../base/log.ts";
import { newVaultCounters } from "../../base/metrics.ts";
import type { VaultCounters } from "../../base/metrics.ts";
import type { LaneSpans } from "../../base/native.ts";
import { vaultClass } from "../../cluster/targets.ts";
import { isOpenToAll, openAccess } from "../../cluster/vault-access.ts";
import type { Access } from "../../cluster/vault-access.ts";
import { checkOpenFiles } from "../../config/conditions.ts";
import type { Address, Config } from "../../config/config.ts";
import type { Gossip } from "../../discovery/gossip.ts";
import { openExporter, startScrape } from "../../exposition/telemetry.ts";
import type { Family } from "../../exposition/text.ts";
import { vaultFamilies } from "../../exposition/vault.ts";
import { addressAgain, startVault } from "../server.ts";
import type { PausableVault, RunningVault, VaultDisk } from "../server.ts";
import { flushFile, vaultDisk } from "./disk.ts";
import { gossipOf } from "./gossip.ts";
import { vaultBudget } from "./memory.ts";

/** Report of a vault that serves. */
export interface ReadyVault {
  address: string;
  class: VaultClass;
  maxBytes: number;
}

export interface VaultProcess {
  config: Config;
  /** Makes the logger, after the checks that are reported as errors of the command. */
  createLogger: () => Logger;
  /** Ends the vault as a signal does. */
  stop: AbortSignal | undefined;
  /** Called once the vault serves, and before it counts as started. */
  onReady: (ready: ReadyVault, access: Access & { logger: Logger }) => Promise<void>;
}

/** Serves until a signal; returns the exit code. Throws the first check that fails. */
export async function serveVault(options: VaultProcess): Promise<number> {
  const { config, stop } = options;
  const signals = catchSignals();
  const recordClass = vaultClass(config);
  checkOpenFiles();
  const logger = options.createLogger();
  const maxBytes = vaultBudget(config.vault.maxBytes);
  const disk = vaultDisk(config.vault);
  warnOfMemory(maxBytes, logger);
  const access = openAccess(config.vault, logger);
  const counters = newVaultCounters();
  const listen = async (): Promise<RunningVault> => {
    const made = { config, recordClass, maxBytes, disk, logger, counters };
    const first = await open(made, access, config.vault.listen);
    const running = config.vault.yieldToUser ? await yielding(first, made) : first;
    const { address } = running;
    logger.info({ address, class: recordClass, maxBytes, disk }, "vault ready");
    await options.onReady({ address, class: recordClass, maxBytes }, { ...access, logger });
    return running;
  };
  let vault: RunningVault | null = null;
  const steps = [
    {
      name: "traces",
      run: () => tracing(config, logger, counters, () => vault?.spans() ?? null),
    },
    { name: "vault", run: async () => (vault = await listen()) },
    {
      name: "announcement",
      run: async () =>
        vault === null || !config.vault.announce
          ? undefined
          : await announced(vault, recordClass, access.security?.certPem ?? null, logger),
    },
    {
      name: "registration in etcd",
      run: async () => (vault === null ? undefined : await registered(config, vault, logger)),
    },
    {
      name: "sleep inhibitor",
      run: async () =>
        vault === null || !config.vault.keepAwake ? undefined : await kept(vault, logger),
    },
    {
      name: "metrics endpoint",
      run: () => {
        const read = (): Family[] =>
          vault === null ? [] : vaultFamilies(vault.stats(), isOpenToAll(config.vault));
        const trouble = (): string | null => vault?.trouble() ?? null;
        return startScrape("vault", config.vault.metricsListen, logger, read, trouble);
      },
    },
  ];
  return runUntilSignal(() => startSteps(steps), { logger, stop, signals });
}

async function tracing(
  config: Config,
  logger: Logger,
  counters: VaultCounters,
  take: () => LaneSpans | null,
): Promise<Running | undefined> {
  const exporter = await openExporter("vault", config.vault.otlpEndpoint, logger, counters);
  if (exporter === null) return undefined;
  const { VaultTracing } = await import("../../exposition/vault-tracing.ts");
  return new VaultTracing(exporter, take);
}

interface Made {
  config: Config;
  recordClass: VaultClass;
  maxBytes: number;
  disk: VaultDisk | null;
  logger: Logger;
  /** Gossip of the vault opened last. */
  gossip?: Gossip | null;
  /** Counters across all openings, because a yielding vault reopens. */
  counters: VaultCounters;
}

async function open(made: Made, access: Access, at: Address): Promise<PausableVault> {
  const { config, recordClass, maxBytes, disk, logger, counters } = made;
  const { addresses, tenantBytes, keptPercent, insecureLan, otlpEndpoint } = config.vault;
  made.gossip = gossipOf(config.vault, access.security, logger, counters);
  return startVault({
    config: {
      listen: at,
      addresses,
      maxBytes,
      tenantBytes,
      keptPercent,
      disk,
      flushFile: flushFile(config.vault),
      insecureLan,
      auditLog: access.auditLog,
      traces: otlpEndpoint !== null,
    },
    security: access.security,
    gossip: made.gossip,
    recordClass,
    logger,
    counters,
  });
}

/** Makes the vault yield to this machine's user; each reopening reads the certificate and tokens again. */
async function yielding(vault: PausableVault, made: Made): Promise<RunningVault> {
  const { logger } = made;
  const { listen, yieldIdleS, yieldGraceS } = made.config.vault;
  const { userOfMachine } = await import("../user/user.ts");
  const { YieldingVault } = await import("../yielding.ts");
  const { HandingOver } = await import("./hand-over.ts");
  const user = await userOfMachine();
  logger.info(
    { heard: user.name },
    "[vault] yield_to_user: the vault stops while somebody uses this machine",
  );
  const again = addressAgain(listen, vault.address);
  return new YieldingVault({
    vault,
    open: () => open(made, openAccess(made.config.vault, logger), again),
    handOver: new HandingOver({
      redundancy: made.config.cluster.redundancy,
      recordClass: made.recordClass,
      gossip: () => made.gossip ?? null,
      logger,
    }),
    user,
    awayMs: yieldIdleS * 1000,
    graceMs: yieldGraceS * 1000,
    logger,
  });
}

async function kept(vault: RunningVault, logger: Logger): Promise<Running> {
  const { Awake } = await import("../user/awake.ts");
  const { AWAKE_IDLE_MS } = await import("../../base/limits/user.ts");
  return new Awake({ vault, logger, idleMs: AWAKE_IDLE_MS });
}

function warnOfMemory(maxBytes: number, logger: Logger): void {
  const machineBytes = totalmem();
  if (maxBytes <= machineBytes) return;
  const text = "[vault] max_bytes is more than this machine has: lower it";
  logger.warn({ maxBytes, machineBytes }, text);
}

async function registered(
  config: Config,
  { address }: RunningVault,
  logger: Logger,
): Promise<Running | undefined> {
  if (config.etcd.endpoints.length === 0) return undefined;
  const { register } = await import("../../discovery/etcd.ts");
  const { etcdOptions } = await import("../../cluster/etcd.ts");
  return register(etcdOptions(config, logger), address, vaultClass(config));
}

async function announced(
  vault: RunningVault,
  recordClass: VaultClass,
  certificate: Buffer | null,
  logger: Logger,
): Promise<Running> {
  const { announce } = await import("../../cluster/mdns.ts");
  const { maxBytes, disk } = vault.stats();
  const capacityBytes = Math.max(maxBytes, disk?.maxBytes ?? 0);
  return announce(
    { address: vault.address, class: recordClass, capacityBytes, certificate },
    logger,
  );
}
