// Owns the life of a vault: its store, its gRPC server, its listening socket, and the drain at the end.
import type { Socket } from "node:net";
import { join } from "node:path";
import { ServerCredentials } from "@grpc/grpc-js";
import type { Server } from "@grpc/grpc-js";
import { vaultClassNumber } from "../block.ts";
import type { VaultClass } from "../block.ts";
import type { Durability } from "../config/config.ts";
import type { Gossip } from "../discovery/gossip.ts";
import { TierkvError } from "../errors.ts";
import { isLocal, splitAddress } from "../hosts.ts";
import type { Running } from "../lifecycle.ts";
import { RECORD_BYTES_MAX, RESERVED_SHARE_MAX, VAULT_DRAIN_MS } from "../limits/general.ts";
import { KEPT_PERCENT_DEFAULT } from "../limits/sessions.ts";
import type { Logger } from "../log.ts";
import type { VaultCounters } from "../metrics.ts";
import { closeStore, coreInfo, createStore, storeDrain } from "../native.ts";
import type { LaneSpans, StoreArchiveOptions, StoreDiskOptions, StoreId } from "../native.ts";
import { nowMs, randomNumber48, withDeadline } from "../time.ts";
import type { StatsReply } from "../wire/messages.ts";
import { ConnectionActivity } from "./access/connection-activity.ts";
import { NO_SPANS, VaultListener } from "./access/listener.ts";
import type { ListenAddress } from "./access/listener.ts";
import { AuditLog, AuditWatch } from "./audit.ts";
import type { VaultContext } from "./context.ts";
import { DiskWatch } from "./disk-watch.ts";
import { openDoor } from "./door.ts";
import { FlushLog } from "./flush-log.ts";
import { recallFlushes } from "./flush.ts";
import { Gate } from "./gate.ts";
import { Health } from "./health.ts";
import type { VaultSecurity } from "./identity.ts";
import { Leases } from "./leases.ts";
import { LookupSpans } from "./lookup-spans.ts";
import type { Members } from "./members.ts";
import { ModelNames } from "./models.ts";
import { PoolCalls } from "./pool-calls.ts";
import { shareMachines } from "./pooling.ts";
import { Rates } from "./rates.ts";
import { newServer } from "./services.ts";
import { Sessions } from "./sessions.ts";
import { SpareTrim } from "./spares.ts";
import { OpenStreams } from "./streams.ts";
import { countsOf, movedOf, stats } from "./unary.ts";
import { Watchers } from "./watchers.ts";
import { shareBytes, Weight, weightFile } from "./weight.ts";

/** Where records are kept on disk. */
export interface VaultDisk {
  readonly dataDir: string;
  readonly diskBytes: number;
  readonly durability: Durability;
  readonly diskTtlS: number | null;
  /** Where full files go besides; none: nowhere. */
  readonly archive?: VaultArchive;
}

export interface VaultArchive {
  readonly url: string;
  readonly maxBytes: number;
  readonly afterS: number;
}

export interface VaultOptions {
  config: {
    readonly listen: ListenAddress;
    /** Further ones, which clients are told of. */
    readonly addresses?: readonly ListenAddress[];
    readonly maxBytes: number;
    /** What each tenant keeps; none: they are not told apart. */
    readonly tenantBytes?: number | null;
    /** Of the memory, what sessions may keep. */
    readonly keptPercent?: number;
    readonly disk?: VaultDisk | null;
    /** Where flushes, and beside it the weight, are remembered by a vault without a disk; null: they are not, over a restart. */
    readonly flushFile?: string | null;
    /** Lets other machines in without TLS and token. */
    readonly insecureLan?: boolean;
    /** null: nothing is written. */
    readonly auditLog?: string | null;
    /** Requests that bring a trace's context become spans, for `spans()`. */
    readonly traces?: boolean;
  };
  /** null: in the clear, and nobody is asked who he is. */
  security?: VaultSecurity | null;
  /** null: it belongs to no pool that keeps a list. Closed with the vault. */
  gossip?: Gossip | null;
  recordClass: VaultClass;
  logger: Logger;
  counters: VaultCounters;
}

export interface RunningVault extends Running {
  /** `host:port` with the real port, or `unix:/path`. */
  readonly address: string;
  /** What it has counted so far, by name. */
  counts(): Readonly<Record<string, number>>;
  /** What Stats answers. */
  stats(): StatsReply;
  /** Of requests of traces that ended since the last time. */
  spans(): LaneSpans;
  /** Why it does not do all that it is there for; null: it does. */
  trouble(): string | null;
}

/** One that nobody can reach for a time, with all that it holds. */
export interface PausableVault extends RunningVault {
  /** Cuts everybody, and takes nobody. */
  pause(): Promise<void>;
  /** Listens where it did. Throws as a start does. */
  resume(): Promise<void>;
  /** Lets this user in at a socket, whoever else is let in. */
  door(path: string): Promise<Running>;
}

/** Listens and serves until closed. Throws INSECURE_LISTEN, CREDENTIALS, ADDRESS_IN_USE, LISTEN_FAILED or DISK_FAILED. */
export async function startVault(options: VaultOptions): Promise<PausableVault> {
  const { config, logger, security = null } = options;
  checkExposure(options);
  const vault = newContext(options);
  await recallFlushes(vault);
  const { audit, counters, members, pool } = vault;
  const { tokens = null } = security ?? {};
  const gate =
    security === null ? null : new Gate({ tokens, members, gossip: pool, audit, counters });
  vault.gate = gate;
  shareMachines(vault);
  const health = new Health(vault.streams);
  const activity = new ConnectionActivity(
    (peer) => vault.listener?.settle(peer) === true,
    () => counters.add("connections_refused"),
  );
  const server = newServer(vault, health, activity, gate);
  const listenAt = listening(vault, server, activity, options);
  let listener: VaultListener;
  try {
    listener = await listenAt(config.listen);
  } catch (error) {
    activity.close();
    vault.leases.close();
    closeStore(vault.store);
    throw error;
  }
  vault.listener = listener;
  if (!isLocal(config.listen) && security === null) {
    logger.warn(
      { address: listener.address },
      "insecure_lan: whoever reaches this address may read and write what prompts were made of",
    );
  }
  vault.rates = new Rates(() => movedOf(vault));
  const { disk = null } = config;
  vault.diskWatch = disk === null ? null : new DiskWatch(vault.store, disk.dataDir, logger);
  const trim = new SpareTrim(vault.store, logger);
  const watch = new AuditWatch(audit, () => countsOf(vault));
  audit.record("started", { address: listener.address, tls: security !== null });
  pool?.start({ address: listener.address, class: options.recordClass });
  logger.debug(
    { address: listener.address, class: options.recordClass, maxBytes: config.maxBytes },
    "vault is serving",
  );
  let closing: Promise<void> | null = null;
  const { address } = listener;
  const close = (): Promise<void> =>
    drain({ vault, health, server, listener, watch, trim, activity });
  return {
    address,
    counts: () => countsOf(vault),
    stats: () => stats(vault),
    spans: () => vault.spans?.takeWith(listener.spans()) ?? NO_SPANS,
    trouble: () => (stats(vault).disk?.failing === true ? "the disk takes no more records" : null),
    async pause(): Promise<void> {
      await listener.stop();
      listener.close();
    },
    async resume(): Promise<void> {
      listener = await listenAt(addressAgain(config.listen, address));
      vault.listener = listener;
    },
    door: (path) => openDoor(vault, path),
    close: () => (closing ??= close()),
  };
}

/** Opens the listener: connections of gRPC go to the server, TLS taken off before. */
function listening(
  vault: VaultContext,
  server: Server,
  activity: ConnectionActivity,
  { config, security = null }: VaultOptions,
): (at: ListenAddress) => Promise<VaultListener> {
  const injector = server.createConnectionInjector(ServerCredentials.createInsecure());
  const onSocket = (socket: Socket): void => {
    activity.watch(socket);
    injector.injectConnection(socket);
  };
  const handlers = { ...vault, traces: vault.spans !== null, onSocket, security };
  return (at) => VaultListener.open(at, handlers, config.addresses);
}

/** Where to listen again: at the port that the system chose. */
export function addressAgain(first: ListenAddress, address: string): ListenAddress {
  return first.host === "" ? first : { ...first, port: splitAddress(address).port };
}

/** What other machines reach is closed, unless somebody wanted it open. */
function checkExposure({ config, security = null }: VaultOptions): void {
  const { listen: at, addresses = [], insecureLan = false } = config;
  if ([at, ...addresses].every(isLocal) || security !== null || insecureLan) return;
  throw new TierkvError("INSECURE_LISTEN", {
    key: "[vault] listen",
    value: at.text,
    reason: "other machines can reach it, and there is neither TLS nor a token",
    fix: "let `tierkv vault` make both in [vault] state_dir, or, on a network where everybody may read all prompts, give --insecure-lan",
  });
}

function newContext(options: VaultOptions): VaultContext {
  const { config, recordClass, logger, counters } = options;
  const { maxBytes, disk = null } = config;
  const maxRecordBytes = Math.min(RECORD_BYTES_MAX, maxBytes);
  const flushFile = disk === null ? (config.flushFile ?? null) : join(disk.dataDir, "flushes.json");
  const epoch = randomNumber48();
  const core = coreInfo();
  // First: it may throw, and a store that is open already would stay so.
  const audit = new AuditLog(config.auditLog ?? null, logger);
  const store = newStore(options, maxRecordBytes);
  // Only now: where the disk was lost, the archive has brought both files back.
  const flushes = new FlushLog(flushFile, logger);
  const weight = new Weight(weightFile(flushFile), logger);
  const models = new ModelNames(disk?.dataDir ?? null, logger);
  return {
    store,
    models,
    leases: new Leases(store, models, logger),
    sessions: new Sessions({ store, models, counters, logger }),
    recordClass,
    durability: disk?.durability ?? null,
    epoch,
    version: core.version,
    recordVersion: core.recordVersion,
    maxRecordBytes,
    maxReservedBytes: Math.max(Math.floor(maxBytes * RESERVED_SHARE_MAX), RECORD_BYTES_MAX),
    startedMs: nowMs(),
    spans: config.traces === true ? new LookupSpans() : null,
    counters,
    logger,
    audit,
    streams: new OpenStreams(),
    members: membersOf(options),
    gate: null,
    flushes,
    weight,
    watchers: new Watchers(flushes, epoch, () => shareBytes({ store, weight })),
    pool: options.gossip ?? null,
    poolCalls: new PoolCalls(options.gossip ?? null, epoch),
    listener: null,
    rates: null,
    diskWatch: null,
  };
}

function newStore({ config, recordClass }: VaultOptions, maxRecordBytes: number): StoreId {
  const { maxBytes, tenantBytes = null, disk = null } = config;
  const { keptPercent = KEPT_PERCENT_DEFAULT } = config;
  return createStore({
    maxBytes,
    maxRecordBytes,
    recordClass: vaultClassNumber(recordClass),
    sessionBytes: Math.floor((maxBytes * keptPercent) / 100),
    ...(tenantBytes === null ? {} : { tenantBytes }),
    ...(disk === null ? {} : { disk: nativeDisk(disk) }),
  });
}

function membersOf({ security }: VaultOptions): Members | null {
  return security?.members ?? null;
}

const DURABILITIES: readonly Durability[] = ["none", "group", "sync"];

function nativeDisk(disk: VaultDisk): StoreDiskOptions {
  const { dataDir, diskBytes, durability, diskTtlS, archive } = disk;
  return {
    dataDir,
    diskBytes,
    durability: DURABILITIES.indexOf(durability),
    ...(diskTtlS === null ? {} : { ttlMs: diskTtlS * 1000 }),
    ...(archive === undefined ? {} : { archive: nativeArchive(archive) }),
  };
}

function nativeArchive({ url, maxBytes, afterS }: VaultArchive): StoreArchiveOptions {
  return { url, maxBytes, afterMs: afterS * 1000 };
}

interface Parts {
  vault: VaultContext;
  health: Health;
  server: Server;
  listener: VaultListener;
  watch: AuditWatch;
  trim: SpareTrim;
  activity: ConnectionActivity;
}

/** Takes nothing new, finishes what is open for VAULT_DRAIN_MS, then cuts it off. */
async function drain(parts: Parts): Promise<void> {
  const { vault, health, server, listener, watch, trim, activity } = parts;
  health.stop();
  vault.watchers.stop();
  vault.pool?.close();
  vault.poolCalls.stop();
  await listener.stop();
  const finished = new Promise<void>((resolve) => {
    server.tryShutdown(() => resolve());
  });
  const idle = Promise.all([finished, listener.idle()]);
  try {
    await withDeadline(idle, VAULT_DRAIN_MS, "finishing open calls");
  } catch {
    vault.logger.warn({ streams: vault.streams.size }, "cutting off calls that did not finish");
    vault.streams.abortAll(new TierkvError("CLOSED", { what: "the vault" }));
  }
  activity.close();
  vault.rates?.close();
  listener.close();
  watch.close();
  vault.leases.close();
  vault.sessions.close();
  trim.close();
  vault.members?.close();
  await vault.streams.idle();
  // What was accepted reaches the disk, and the next start finds footers.
  await storeDrain(vault.store);
  vault.diskWatch?.close();
  closeStore(vault.store);
  vault.logger.info("vault stopped");
}
