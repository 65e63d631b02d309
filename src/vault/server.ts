// Owns the life of a vault: its store, its gRPC server, its listening socket, and the drain at the end.
import type { Socket } from "node:net";
import { join } from "node:path";
import { ServerCredentials } from "@grpc/grpc-js";
import type { Server } from "@grpc/grpc-js";
import { archiveTrouble } from "../base/archive-remedies.ts";
import { vaultClassNumber } from "../base/block.ts";
import type { VaultClass } from "../base/block.ts";
import { TierkvError, toTierkvError } from "../base/errors.ts";
import { isLocal, splitAddress } from "../base/hosts.ts";
import type { Running } from "../base/lifecycle.ts";
import { RECORD_BYTES_MAX, RESERVED_SHARE_MAX, VAULT_DRAIN_MS } from "../base/limits/general.ts";
import { KEPT_PERCENT_DEFAULT } from "../base/limits/sessions.ts";
import type { Logger } from "../base/log.ts";
import type { VaultCounter, VaultCounters } from "../base/metrics.ts";
import {
  closeStore,
  coreInfo,
  createStore,
  storeDiskStats,
  storeDrain,
  storeStats,
} from "../base/native.ts";
import type { LaneSpans, StoreArchiveOptions, StoreDiskOptions, StoreId } from "../base/native.ts";
import { nowMs, randomNumber48, withDeadline } from "../base/time.ts";
import type { Durability } from "../config/config.ts";
import type { Gossip } from "../discovery/gossip.ts";
import type { StatsReply } from "../wire/messages.ts";
import { AuditLog, AuditWatch } from "./access/audit.ts";
import { ConnectionActivity } from "./access/connection-activity.ts";
import { Gate } from "./access/gate.ts";
import type { VaultSecurity } from "./access/identity.ts";
import { NO_SPANS, VaultListener } from "./access/listener.ts";
import type { ListenAddress } from "./access/listener.ts";
import type { Members } from "./access/members.ts";
import type { VaultContext } from "./calls/context.ts";
import { flushMissed, recallFlushes } from "./calls/flush.ts";
import { shareMachines } from "./calls/gossip.ts";
import { Health } from "./calls/health.ts";
import { PoolCalls } from "./calls/pool-calls.ts";
import { countsOf, movedOf, stats } from "./calls/records.ts";
import { newServer } from "./calls/services.ts";
import { openDoor } from "./door.ts";
import { FlushLog } from "./flushes/flush-log.ts";
import { MissedFlushes } from "./flushes/missed-flushes.ts";
import { Watchers } from "./flushes/watchers.ts";
import { DiskWatch } from "./state/disk-watch.ts";
import { LookupSpans } from "./state/lookup-spans.ts";
import { Leases } from "./state/measuring-leases.ts";
import { ModelNames } from "./state/models.ts";
import { Rates } from "./state/rates.ts";
import { Sessions } from "./state/sessions.ts";
import { SpareTrim } from "./state/spares.ts";
import { OpenStreams } from "./state/streams.ts";
import { shareBytes, Weight, weightFile } from "./state/weight.ts";

/** The disk tier. */
export interface VaultDisk {
  readonly dataDir: string;
  readonly diskBytes: number;
  readonly durability: Durability;
  readonly diskTtlS: number | null;
  /** Archive that full segments are copied to; absent: none. */
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
    /** Further addresses, which Hello reports. */
    readonly addresses?: readonly ListenAddress[];
    readonly maxBytes: number;
    /** Bytes guaranteed to each tenant; null: tenants are not told apart. */
    readonly tenantBytes?: number | null;
    /** Percent of the memory that sessions may keep. */
    readonly keptPercent?: number;
    readonly disk?: VaultDisk | null;
    /** File of flushes for a vault without a disk, with the weight's beside it; null: a restart forgets both. */
    readonly flushFile?: string | null;
    /** Admits other machines without TLS and token. */
    readonly insecureLan?: boolean;
    /** Path of the audit log; null: none. */
    readonly auditLog?: string | null;
    /** Whether requests with a trace context become spans, for `spans()`. */
    readonly traces?: boolean;
  };
  /** null: plaintext, and callers are not authenticated. */
  security?: VaultSecurity | null;
  /** null: the vault belongs to no pool with a signed list. Closed with the vault. */
  gossip?: Gossip | null;
  recordClass: VaultClass;
  logger: Logger;
  counters: VaultCounters;
}

export interface RunningVault extends Running {
  /** `host:port` with the real port, or `unix:/path`. */
  readonly address: string;
  /** Counters so far, by name. */
  counts(): Readonly<Record<string, number>>;
  /** The reply of the call Stats. */
  stats(): StatsReply;
  /** Spans of traced requests that ended since the last call. */
  spans(): LaneSpans;
  /** Reason why the vault does not serve fully; null: none. */
  trouble(): string | null;
}

/** A vault that can stop serving for a while without losing its records. */
export interface PausableVault extends RunningVault {
  /** Cuts all connections and accepts none. */
  pause(): Promise<void>;
  /** Listens at the same address again. Throws as a start does. */
  resume(): Promise<void>;
  /** Opens a Unix socket for this user, which serves also while the vault is paused. */
  door(path: string): Promise<Running>;
}

/** Listens and serves until closed. Throws INSECURE_LISTEN, CREDENTIALS, ADDRESS_IN_USE, LISTEN_FAILED or DISK_FAILED. */
export async function startVault(options: VaultOptions): Promise<PausableVault> {
  const { config, logger, security = null } = options;
  checkExposure(options);
  const vault = newContext(options);
  await recallFlushes(vault);
  await vault.missed.begin();
  const { audit, counters, members, pool } = vault;
  const gate =
    security === null ? null : new Gate({ ...security, members, gossip: pool, audit, counters });
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
      "insecure_lan: everybody who reaches this address can read and write cached data of prompts",
    );
  }
  vault.rates = new Rates(() => movedOf(vault));
  vault.diskWatch = watchDisk(vault, options);
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
      const before = listener;
      listener = await listenAt(addressAgain(config.listen, address));
      addCounts(counters, before);
      vault.listener = listener;
    },
    door: (path) => openDoor(vault, path),
    close: () => (closing ??= close()),
  };
}

/** Returns a function that opens the listener and passes its gRPC connections, already decrypted, to the server. */
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

/** Adds the counts of a closed listener, because the next one counts from zero and a vault's counters must not fall. */
function addCounts(counters: VaultCounters, listener: VaultListener): void {
  for (const [name, count] of Object.entries(listener.counts()))
    counters.add(name as VaultCounter, count);
}

/** Returns the address to listen at again, with the port that the system chose. */
export function addressAgain(first: ListenAddress, address: string): ListenAddress {
  return first.host === "" ? first : { ...first, port: splitAddress(address).port };
}

/** Refuses to expose a vault without credentials to other machines, unless insecure_lan is set. */
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

function watchDisk(vault: VaultContext, { config, logger }: VaultOptions): DiskWatch | null {
  const { disk = null } = config;
  const onRecorded = (): void => vault.flushes.endRecorded();
  return disk === null ? null : new DiskWatch(vault.store, disk.dataDir, logger, onRecorded);
}

function newContext(options: VaultOptions): VaultContext {
  const { config, recordClass, logger, counters } = options;
  const { maxBytes, disk = null } = config;
  const maxRecordBytes = Math.min(RECORD_BYTES_MAX, maxBytes);
  const flushFile = disk === null ? (config.flushFile ?? null) : join(disk.dataDir, "flushes.json");
  const epoch = randomNumber48();
  const core = coreInfo();
  // Opened first, because it may throw and would leave an open store behind.
  const audit = new AuditLog(config.auditLog ?? null, logger);
  const store = newStore(options, maxRecordBytes);
  // Opened after the store, because the archive restores both files when the disk was lost.
  const flushes = new FlushLog(flushFile, logger);
  const weight = new Weight(weightFile(flushFile), logger);
  const models = new ModelNames(disk?.dataDir ?? null, logger);
  const pool = options.gossip ?? null;
  const missed = new MissedFlushes({
    pool,
    flushes,
    isEmpty: () => isEmpty(store),
    namespacesOf: (model) => models.namespacesOf(model),
    flush: (scope) => flushMissed(context, scope),
    logger,
  });
  const context: VaultContext = {
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
    missed,
    weight,
    watchers: new Watchers(flushes, epoch, () => shareBytes({ store, weight })),
    pool,
    poolCalls: new PoolCalls(pool, epoch),
    listener: null,
    rates: null,
    diskWatch: null,
  };
  return context;
}

function isEmpty(store: StoreId): boolean {
  const disk = storeDiskStats(store);
  const onDisk = disk === null || disk === undefined ? 0 : disk.records + Number(disk.isRecovering);
  return storeStats(store).records + onDisk === 0;
}

function newStore({ config, recordClass }: VaultOptions, maxRecordBytes: number): StoreId {
  const { maxBytes, tenantBytes = null, disk = null } = config;
  const { keptPercent = KEPT_PERCENT_DEFAULT } = config;
  try {
    return createStore({
      maxBytes,
      maxRecordBytes,
      recordClass: vaultClassNumber(recordClass),
      sessionBytes: Math.floor((maxBytes * keptPercent) / 100),
      ...(tenantBytes === null ? {} : { tenantBytes }),
      ...(disk === null ? {} : { disk: nativeDisk(disk) }),
    });
  } catch (error) {
    const { code, details } = toTierkvError(error);
    if (code !== "DISK_FAILED" || disk?.archive === undefined) throw error;
    const reason = archiveTrouble(String(details["reason"]));
    throw new TierkvError("DISK_FAILED", { reason }, { cause: error });
  }
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

/** Takes nothing new, lets open calls finish for VAULT_DRAIN_MS, then cuts them off. */
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
  vault.diskWatch?.beforeDrain();
  // Accepted records and segment footers reach the disk before the store closes.
  await storeDrain(vault.store);
  vault.diskWatch?.close();
  closeStore(vault.store);
  vault.logger.info("vault stopped");
}
