// Owns `tierkv vault`: serves records of one class, or of both, until a signal.
import { totalmem } from "node:os";
import { Option } from "commander";
import type { VaultClass } from "../../base/block.ts";
import { splitAddress } from "../../base/hosts.ts";
import { runUntilSignal, startSteps } from "../../base/lifecycle.ts";
import type { Running } from "../../base/lifecycle.ts";
import { INVITATION_S_DEFAULT } from "../../base/limits/access.ts";
import type { Logger } from "../../base/log.ts";
import { newVaultCounters } from "../../base/metrics.ts";
import type { VaultCounters } from "../../base/metrics.ts";
import type { LaneSpans } from "../../base/native.ts";
import { vaultClass, VAULT_ROLES } from "../../cluster/targets.ts";
import type { Access } from "../../cluster/vault-access.ts";
import { checkOpenFiles } from "../../config/conditions.ts";
import type { Address, Config } from "../../config/config.ts";
import type { Override } from "../../config/override.ts";
import type { Gossip } from "../../discovery/gossip.ts";
import { openExporter, startScrape } from "../../exposition/telemetry.ts";
import type { Family } from "../../exposition/text.ts";
import { flushFile, vaultDisk } from "../../vault/process/disk.ts";
import { vaultBudget } from "../../vault/process/memory.ts";
import type { PausableVault, RunningVault, VaultDisk } from "../../vault/server.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

interface VaultOptions {
  listen?: string;
  role?: string;
  maxBytes?: string;
  insecureLan?: true;
  untilStdinEnds?: true;
}

export function addVault(program: Command): void {
  program
    .command("vault")
    .summary("serve a vault on this machine")
    .description(
      "Serves a vault: memory with encoded blocks for engines on the LAN. [cluster] role sets its class: kv_cold\n" +
        "(attention KV), ssm_cold (recurrent state) or cold (both). On an address that other machines reach, it requires\n" +
        "TLS and a token, and makes both at its first start. It then shows the `tierkv join` line for the engine's\n" +
        "machine, on a terminal or else in a file of mode 0600. SIGTERM drains the vault; a second SIGTERM ends it at\n" +
        "once.",
    )
    .option(
      "--listen <address>",
      "address to serve, host:port or unix:/path (default: [vault] listen)",
    )
    .addOption(
      new Option("--role <role>", "record class of the vault (default: [cluster] role)").choices(
        VAULT_ROLES,
      ),
    )
    .option(
      "--max-bytes <size>",
      "memory for records: 24GB, 24GiB or bytes (default: [vault] max_bytes)",
    )
    .option(
      "--insecure-lan",
      "serve every machine without TLS and token; overrides [vault] insecure_lan",
    )
    .option(
      "--until-stdin-ends",
      "drain also at the end of standard input, so that a parent process can stop it",
    )
    .example("tierkv vault --config /etc/tierkv/tierkv.toml")
    .does(serve);
}

async function serve(call: Call<VaultOptions>): Promise<number> {
  const config = call.loadConfig(overrides(call.options));
  const recordClass = vaultClass(config);
  checkOpenFiles();
  const logger = call.createLogger("vault", config);
  const maxBytes = vaultBudget(config.vault.maxBytes);
  const disk = vaultDisk(config.vault);
  warnOfMemory(maxBytes, logger);
  const { isOpenToAll, openAccess } = await import("../../cluster/vault-access.ts");
  const access = openAccess(config.vault, logger);
  const { vaultFamilies } = await import("../../exposition/vault.ts");
  const counters = newVaultCounters();
  const listen = async (): Promise<RunningVault> => {
    const made = { config, recordClass, maxBytes, disk, logger, counters };
    const first = await open(made, access, config.vault.listen);
    const vault = config.vault.yieldToUser ? await yielding(first, made) : first;
    const { address } = vault;
    logger.info({ address, class: recordClass, maxBytes, disk }, "vault ready");
    if (call.isJson) call.print({ event: "ready", address, class: recordClass, maxBytes }, []);
    await tellHowToJoin(call, config, { ...access, logger }, address);
    return vault;
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
  const stop = call.options.untilStdinEnds === true ? whenStdinEnds() : undefined;
  return runUntilSignal(() => startSteps(steps), { logger, stop });
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

async function tellHowToJoin(
  call: Call,
  { vault }: Config,
  { isNew, security, logger }: Access & { logger: Logger },
  address: string,
): Promise<void> {
  if (isNew) {
    const { announce } = await import("../join/invitation.ts");
    const secret = security?.members?.invite("write", INVITATION_S_DEFAULT, 1) ?? "";
    announce(call, vault, { host: vault.listen.host, port: splitAddress(address).port }, secret);
  } else if (security !== null && !vault.insecureLan && vault.tlsCert === null) {
    logger.info({}, "`tierkv invite` prints the line that lets another machine in");
  }
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
  const { startVault } = await import("../../vault/server.ts");
  const { gossipOf } = await import("../vaults/pooling.ts");
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
  const { openAccess } = await import("../../cluster/vault-access.ts");
  const { addressAgain } = await import("../../vault/server.ts");
  const { userOfMachine } = await import("../../vault/user/user.ts");
  const { YieldingVault } = await import("../../vault/yielding.ts");
  const { HandingOver } = await import("../../vault/process/hand-over.ts");
  const user = await userOfMachine();
  logger.info(
    { heard: user.name },
    "[vault] yield_to_user: gives way to whoever uses this machine",
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
  const { Awake } = await import("../../vault/user/awake.ts");
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

function overrides({ listen, role, maxBytes, insecureLan }: VaultOptions): Override[] {
  const section = "vault";
  const isOpen = insecureLan === true ? "true" : undefined;
  return [
    { option: "--role", section: "cluster", name: "role", text: role },
    { option: "--listen", section, name: "listen", text: listen },
    { option: "--max-bytes", section, name: "max_bytes", text: maxBytes },
    { option: "--insecure-lan", section, name: "insecure_lan", text: isOpen },
    { option: "--insecure-lan", section, name: "metrics_lan", text: isOpen },
  ];
}

/** Fires when standard input ends, because the process that held it has ended. */
function whenStdinEnds(): AbortSignal {
  const controller = new AbortController();
  const onEnd = (): void => controller.abort("standard input ended");
  process.stdin.once("end", onEnd).once("error", onEnd).resume();
  return controller.signal;
}
