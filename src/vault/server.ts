// Owns the life of a vault: its store, its gRPC server, its listening socket, and the drain at the end.
import { Server, ServerCredentials } from "@grpc/grpc-js";
import { vaultClassNumber } from "../block.ts";
import type { VaultClass } from "../block.ts";
import type { Durability } from "../config/config.ts";
import { TierkvError } from "../errors.ts";
import { isLocal } from "../hosts.ts";
import type { Running } from "../lifecycle.ts";
import {
  RECORD_BYTES_MAX,
  RESERVED_SHARE_MAX,
  STORE_CALL_BYTES_MAX,
  VAULT_DRAIN_MS,
} from "../limits.ts";
import type { Logger } from "../log.ts";
import type { VaultCounters } from "../metrics.ts";
import { closeStore, coreInfo, createStore, storeDrain } from "../native.ts";
import type { LaneServerTls, StoreDiskOptions } from "../native.ts";
import { nowMs, randomNumber48, withDeadline } from "../time.ts";
import type { StatsReply } from "../wire/messages.ts";
import { serverOptions } from "../wire/options.ts";
import { healthService, vaultService } from "../wire/service.ts";
import { AuditLog, AuditWatch } from "./audit.ts";
import type { VaultContext } from "./context.ts";
import { fetchHandler } from "./fetch-call.ts";
import { Gate } from "./gate.ts";
import { Guests } from "./guests.ts";
import { Health } from "./health.ts";
import type { VaultSecurity } from "./identity.ts";
import { openLanes } from "./lanes.ts";
import type { LanePort } from "./lanes.ts";
import { listen } from "./listener.ts";
import type { ListenAddress, Listener } from "./listener.ts";
import { ModelNames } from "./models.ts";
import { Rates } from "./rates.ts";
import { SpareTrim } from "./spares.ts";
import { storeHandler } from "./store-call.ts";
import { OpenStreams } from "./streams.ts";
import {
  countsOf,
  demote,
  flush,
  hello,
  lookup,
  movedOf,
  nameModel,
  report,
  stats,
  unary,
  unaryLater,
} from "./unary.ts";

/** Where records are kept on disk. */
export interface VaultDisk {
  readonly dataDir: string;
  readonly diskBytes: number;
  readonly durability: Durability;
  readonly diskTtlS: number | null;
}

export interface VaultOptions {
  config: {
    readonly listen: ListenAddress;
    readonly maxBytes: number;
    /** What each tenant keeps; none: they are not told apart. */
    readonly tenantBytes?: number | null;
    /** Port of the lanes, 0 or none: any; beside: see `openLanes`; null: no lanes. */
    readonly lanePort?: LanePort | null;
    readonly disk?: VaultDisk | null;
    /** Lets other machines in without TLS and token. */
    readonly insecureLan?: boolean;
    /** null: nothing is written. */
    readonly auditLog?: string | null;
  };
  /** null: in the clear, and nobody is asked who he is. */
  security?: VaultSecurity | null;
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
}

/** Listens and serves until closed. Throws INSECURE_LISTEN, CREDENTIALS, ADDRESS_IN_USE, LISTEN_FAILED or DISK_FAILED. */
export async function startVault(options: VaultOptions): Promise<RunningVault> {
  const { config, logger, security = null } = options;
  checkExposure(options);
  const vault = newContext(options);
  const { audit, counters } = vault;
  const gate = security === null ? null : new Gate({ tokens: security.tokens, audit, counters });
  const health = new Health(vault.streams);
  const guests = new Guests(() => counters.add("connections_refused"));
  const server = newServer(vault, health, guests, gate);
  // TLS has been taken off before a connection comes to gRPC.
  const injector = server.createConnectionInjector(ServerCredentials.createInsecure());
  let listener: Listener;
  try {
    listener = await listen(config.listen, {
      onSocket: (socket) => {
        guests.greet(socket);
        injector.injectConnection(socket);
      },
      onRefused: () => counters.add("connections_refused"),
      security,
      gate,
    });
  } catch (error) {
    guests.close();
    closeStore(vault.store);
    throw error;
  }
  try {
    const { lanePort = 0 } = config;
    if (lanePort !== null) {
      const tls = security === null ? undefined : laneTls(security);
      vault.lanes = openLanes({ ...vault, tls }, config.listen, lanePort);
    }
  } catch (error) {
    await listener.stop();
    guests.close();
    closeStore(vault.store);
    throw error;
  }
  if (!isLocal(config.listen) && security === null) {
    logger.warn(
      { address: listener.address },
      "insecure_lan: whoever reaches this address may read and write what prompts were made of",
    );
  }
  vault.rates = new Rates(() => movedOf(vault));
  const trim = new SpareTrim(vault.store, logger);
  const watch = new AuditWatch(audit, () => countsOf(vault));
  audit.record("started", { address: listener.address, tls: security !== null });
  logger.debug(
    { address: listener.address, class: options.recordClass, maxBytes: config.maxBytes },
    "vault is serving",
  );
  let closing: Promise<void> | null = null;
  return {
    address: listener.address,
    counts: () => countsOf(vault),
    stats: () => stats(vault),
    close: () => (closing ??= drain({ vault, health, server, listener, watch, trim, guests })),
  };
}

/** Lanes are behind the same TLS; where tokens open the vault, the one of the hello is enough there. */
function laneTls({ certPem, keyPem, clientCaPem, tokens }: VaultSecurity): LaneServerTls {
  const isByCertificate = tokens === null && clientCaPem !== null;
  return { certPem, keyPem, ...(isByCertificate ? { clientCaPem } : {}) };
}

/** What other machines reach is closed, unless somebody wanted it open. */
function checkExposure({ config, security = null }: VaultOptions): void {
  const { listen: at, insecureLan = false } = config;
  if (isLocal(at) || security !== null || insecureLan) return;
  throw new TierkvError("INSECURE_LISTEN", {
    key: "[vault] listen",
    value: at.text,
    reason: "other machines can reach it, and there is neither TLS nor a token",
    fix: "let `tierkv vault` make both in [vault] state_dir, or, on a network where everybody may read all prompts, give --insecure-lan",
  });
}

function newContext({ config, recordClass, logger, counters }: VaultOptions): VaultContext {
  const { maxBytes, tenantBytes = null, disk = null } = config;
  const maxRecordBytes = Math.min(RECORD_BYTES_MAX, maxBytes);
  const core = coreInfo();
  // First: it may throw, and a store that is open already would stay so.
  const audit = new AuditLog(config.auditLog ?? null, logger);
  return {
    store: createStore({
      maxBytes,
      maxRecordBytes,
      recordClass: vaultClassNumber(recordClass),
      ...(tenantBytes === null ? {} : { tenantBytes }),
      ...(disk === null ? {} : { disk: nativeDisk(disk) }),
    }),
    recordClass,
    durability: disk?.durability ?? null,
    epoch: randomNumber48(),
    version: core.version,
    recordVersion: core.recordVersion,
    maxRecordBytes,
    maxReservedBytes: Math.max(maxBytes * RESERVED_SHARE_MAX, STORE_CALL_BYTES_MAX),
    startedMs: nowMs(),
    counters,
    logger,
    audit,
    streams: new OpenStreams(),
    models: new ModelNames(disk?.dataDir ?? null, logger),
    lanes: null,
    rates: null,
  };
}

const DURABILITIES: readonly Durability[] = ["none", "group", "sync"];

function nativeDisk({ dataDir, diskBytes, durability, diskTtlS }: VaultDisk): StoreDiskOptions {
  const given = { dataDir, diskBytes, durability: DURABILITIES.indexOf(durability) };
  return diskTtlS === null ? given : { ...given, ttlMs: diskTtlS * 1000 };
}

function newServer(vault: VaultContext, health: Health, guests: Guests, gate: Gate | null): Server {
  // The first stands next to the wire: what the gate refuses goes no further.
  const interceptors = [...(gate === null ? [] : [gate.interceptor]), guests.interceptor];
  const server = new Server({ ...serverOptions(), interceptors });
  server.addService(
    { ...vaultService },
    {
      Hello: unary(vault, "Hello", hello),
      Lookup: unary(vault, "Lookup", lookup),
      Store: storeHandler(vault),
      Fetch: fetchHandler(vault),
      Report: unaryLater(vault, "Report", report),
      Stats: unary(vault, "Stats", stats),
      Flush: unaryLater(vault, "Flush", flush),
      Name: unary(vault, "Name", nameModel),
      Demote: unary(vault, "Demote", demote),
    },
  );
  server.addService(
    { ...healthService },
    {
      Check: health.check,
      Watch: health.watch,
    },
  );
  return server;
}

interface Parts {
  vault: VaultContext;
  health: Health;
  server: Server;
  listener: Listener;
  watch: AuditWatch;
  trim: SpareTrim;
  guests: Guests;
}

/** Takes nothing new, finishes what is open for VAULT_DRAIN_MS, then cuts it off. */
async function drain({
  vault,
  health,
  server,
  listener,
  watch,
  trim,
  guests,
}: Parts): Promise<void> {
  health.stop();
  await listener.stop();
  const finished = new Promise<void>((resolve) => {
    server.tryShutdown(() => resolve());
  });
  const idle = Promise.all([finished, vault.lanes?.drain()]);
  try {
    await withDeadline(idle, VAULT_DRAIN_MS, "finishing open calls");
  } catch {
    vault.logger.warn({ streams: vault.streams.size }, "cutting off calls that did not finish");
    vault.streams.abortAll(new TierkvError("CLOSED", { what: "the vault" }));
  }
  listener.cut();
  guests.close();
  vault.rates?.close();
  vault.lanes?.close();
  watch.close();
  trim.close();
  await vault.streams.idle();
  // What was accepted reaches the disk, and the next start finds footers.
  await storeDrain(vault.store);
  closeStore(vault.store);
  vault.logger.info("vault stopped");
}
