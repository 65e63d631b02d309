// Owns the unary calls of a vault: Hello, Lookup, Report, Keep, Sessions, Stats, Name, Measure.
import type { handleUnaryCall } from "@grpc/grpc-js";
import {
  countBits,
  isMeasuring,
  ItemStatus,
  statusName,
  toNamespace,
  vaultClassNumber,
} from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import {
  KEYS_MAX,
  PROTOCOL_MAX,
  PROTOCOL_MIN,
  REPORT_KEYS_MAX,
} from "../../base/limits/general.ts";
import {
  storeDiskStats,
  storeDurable,
  storeLookup,
  storeRecheck,
  storeStats,
} from "../../base/native.ts";
import type { StoreDiskStats } from "../../base/native.ts";
import { mayDo } from "../../base/roles.ts";
import { nowMs } from "../../base/time.ts";
import type * as m from "../../wire/messages.ts";
import { toGrpcStatus } from "../../wire/status.ts";
import { shortHash } from "../access/audit.ts";
import { callerOf } from "../access/gate.ts";
import type { Caller } from "../access/gate.ts";
import { checkKeys } from "../state/checks.ts";
import type { Moved } from "../state/rates.ts";
import { shareBytes } from "../state/weight.ts";
import type { VaultContext } from "./context.ts";
import { flushNewcomer } from "./flush.ts";

/** Makes a gRPC handler from a function; its errors become statuses, counted and logged. */
export function unary<Request, Reply>(
  vault: VaultContext,
  call: string,
  answer: (vault: VaultContext, request: Request, caller: Caller) => Reply,
): handleUnaryCall<Request, Reply> {
  return (made, callback) => {
    try {
      callback(null, answer(vault, made.request, callerOf(made)));
    } catch (error) {
      callback(refused(vault, call, error));
    }
  };
}

/** Makes the same from an async function. */
export function unaryLater<Request, Reply>(
  vault: VaultContext,
  call: string,
  answer: (vault: VaultContext, request: Request, caller: Caller) => Promise<Reply>,
): handleUnaryCall<Request, Reply> {
  return (made, callback) => {
    const serve = async (): Promise<void> => {
      try {
        const reply = await answer(vault, made.request, callerOf(made));
        callback(null, reply);
      } catch (error) {
        callback(refused(vault, call, error));
      }
    };
    void serve();
  };
}

function refused(
  vault: VaultContext,
  call: string,
  error: unknown,
): ReturnType<typeof toGrpcStatus> {
  vault.counters.add("calls_refused");
  vault.logger.warn({ call, err: error }, "call refused");
  return toGrpcStatus(error);
}

export function hello(
  vault: VaultContext,
  request: m.HelloRequest,
  { role, account }: Caller,
): m.HelloReply {
  vault.counters.add("hellos");
  const protocol = Math.min(request.protocolMax, PROTOCOL_MAX);
  if (protocol < Math.max(request.protocolMin, PROTOCOL_MIN)) {
    throw new TierkvError("VERSION_MISMATCH", {
      peer: request.clientName === "" ? "the client" : request.clientName.slice(0, 100),
      theirs: range(request.protocolMin, request.protocolMax),
      ours: range(PROTOCOL_MIN, PROTOCOL_MAX),
    });
  }
  vault.logger.debug({ client: request.clientName, version: request.clientVersion }, "hello");
  const { listener } = vault;
  const mayStore = mayDo(role, "write");
  return {
    protocol,
    version: vault.version,
    recordVersion: vault.recordVersion,
    recordClass: vaultClassNumber(vault.recordClass),
    epoch: vault.epoch,
    maxRecordBytes: vault.maxRecordBytes,
    maxKeys: KEYS_MAX,
    laneToken: listener?.admit(mayStore, account) ?? Buffer.alloc(0),
    readOnly: !mayStore,
    flushes: vault.flushes.since(request.flushed),
    capacityBytes: shareBytes(vault),
    draining: vault.watchers.isDraining,
    addresses: [...(listener?.addresses ?? [])],
    traced: vault.spans !== null,
  };
}

function range(first: number, last: number): string {
  return first === last ? `protocol ${first}` : `protocols ${first} to ${last}`;
}

export function lookup(vault: VaultContext, request: m.LookupRequest): m.LookupReply {
  const { namespace, keys, count } = checkKeys(request.namespace, request.keys);
  const look = (): Buffer => storeLookup(vault.store, namespace, keys);
  const { trace = EMPTY } = request;
  const hits = (found: Buffer): number => countBits(found, count);
  const present = vault.spans?.run(trace, count, look, hits) ?? look();
  const durable = request.askDurable ? storeDurable(vault.store, namespace, keys) : NOTHING;
  // Not counted, because the hit rate covers engines' requests only.
  if (request.uncounted === true || isMeasuring(namespace))
    return { present, durable: Buffer.from(durable) };
  vault.counters.add("lookups");
  vault.counters.add("lookup_keys", count);
  vault.counters.add("lookup_hits", hits(present));
  return { present, durable: Buffer.from(durable) };
}

const NOTHING = new Uint8Array(0);
const EMPTY = Buffer.alloc(0);

export async function report(
  vault: VaultContext,
  request: m.ReportRequest,
): Promise<m.ReportReply> {
  const { namespace, keys, count } = checkKeys(request.namespace, request.keys, REPORT_KEYS_MAX);
  const statuses = [...(await storeRecheck(vault.store, namespace, keys))];
  const quarantined = statuses.filter((status) => status === ItemStatus.QUARANTINED).length;
  vault.counters.add("reports");
  vault.counters.add("reported", count);
  vault.logger.warn(
    { reason: request.reason.slice(0, 200), statuses: statuses.map(statusName), quarantined },
    "a client reported bad records",
  );
  return { statuses };
}

export function keep(vault: VaultContext, request: m.KeepRequest): m.KeepReply {
  return vault.sessions.receive(request);
}

export function sessions(vault: VaultContext): m.SessionsReply {
  return { sessions: vault.sessions.list() };
}

/** Counts of calls come from the counters; occupancy and evictions come from the store. */
export function stats(vault: VaultContext): m.StatsReply {
  const now = storeStats(vault.store);
  const onDisk = storeDiskStats(vault.store) ?? null;
  return {
    version: vault.version,
    recordClass: vaultClassNumber(vault.recordClass),
    epoch: vault.epoch,
    uptimeMs: Math.round(nowMs() - vault.startedMs),
    maxBytes: now.maxBytes,
    usedBytes: now.usedBytes,
    reservedBytes: now.reservedBytes,
    spareBytes: now.spareBytes,
    draining: vault.watchers.isDraining,
    weight: vault.weight.value,
    keptBytes: now.keptBytes,
    sessions: vault.sessions.count,
    records: now.records,
    namespaces: now.namespaces,
    counters: {
      ...countsOf(vault),
      quarantined: now.quarantined + (onDisk?.quarantined ?? 0),
      evicted: now.evicted,
      evicted_bytes: now.evictedBytes,
      ...(onDisk === null ? {} : diskCounters(onDisk)),
    },
    ...(onDisk === null ? {} : { disk: diskStats(onDisk, vault) }),
    ...traffic(vault),
  };
}

function traffic({
  listener,
  rates,
}: VaultContext): Pick<m.StatsReply, "lanes" | "outBytesPerS" | "inBytesPerS"> {
  const { out, in: into } = rates?.perSecond ?? { out: 0, in: 0 };
  return { lanes: listener?.lanes ?? 0, outBytesPerS: out, inBytesPerS: into };
}

/** Record bytes since the start. */
export function movedOf(vault: VaultContext): Moved {
  const { fetched_bytes: out = 0, stored_bytes: stored = 0 } = countsOf(vault);
  return { out, in: stored };
}

/** Returns the vault's counters plus those of the listener and lanes, which use the same names. */
export function countsOf({ counters, listener }: VaultContext): Record<string, number> {
  const counts = counters.snapshot();
  for (const [name, count] of Object.entries(listener?.counts() ?? {})) {
    counts[name] = (counts[name] ?? 0) + count;
  }
  return counts;
}

function diskStats(now: StoreDiskStats, { durability, diskWatch }: VaultContext): m.DiskStats {
  const isGone = diskWatch?.isGone === true;
  return {
    maxBytes: now.maxBytes,
    usedBytes: now.usedBytes,
    records: now.records,
    recordBytes: now.recordBytes,
    // The next start finds nothing of a directory that was taken away.
    durableRecords: isGone ? 0 : now.durableRecords,
    durableBytes: isGone ? 0 : now.durableBytes,
    queuedRecords: now.queued,
    queuedBytes: now.queuedBytes,
    recovering: now.isRecovering,
    failing: now.isFailing || isGone,
    durability: durability ?? "none",
    ...(now.archive === undefined ? {} : { archive: archiveStats(now.archive) }),
  };
}

function archiveStats(now: NonNullable<StoreDiskStats["archive"]>): m.ArchiveStats {
  return {
    maxBytes: now.maxBytes,
    usedBytes: now.usedBytes,
    remoteSegments: now.remoteSegments,
    pendingBytes: now.pendingBytes,
    failing: now.isFailing,
    trouble: now.trouble,
  };
}

/** Counters of the durable tier since the vault started. */
function diskCounters(now: StoreDiskStats): Record<string, number> {
  return {
    disk_written: now.written,
    disk_written_bytes: now.writtenBytes,
    disk_file_bytes: now.fileBytes,
    disk_read: now.read,
    disk_read_bytes: now.readBytes,
    disk_missed: now.missed,
    disk_skipped: now.skipped,
    disk_evicted: now.evicted,
    disk_moved: now.moved,
    disk_expired: now.expired,
    disk_scrubbed_bytes: now.scrubbedBytes,
    disk_alarms: now.alarms,
    disk_syncs_failed: now.syncsFailed,
    ...(now.archive === undefined ? {} : archiveCounters(now.archive)),
  };
}

function archiveCounters(now: NonNullable<StoreDiskStats["archive"]>): Record<string, number> {
  return {
    archive_sent_bytes: now.sentBytes,
    archive_read: now.read,
    archive_read_bytes: now.readBytes,
    archive_removed: now.removed,
    archive_failures: now.failures,
  };
}

export function nameModel(
  vault: VaultContext,
  request: m.NameRequest,
  caller: Caller,
): m.NameReply {
  const namespace = toNamespace(request.namespace);
  const { peer } = caller;
  const isNew = vault.models.learn(namespace, request.model);
  flushNewcomer(vault, namespace, request.model);
  if (isNew) {
    const known = { namespace: shortHash(namespace), model: request.model };
    vault.audit.record("namespace_new", { peer, ...known });
  }
  return {};
}

/** Begins or ends the lease of a measuring command's namespace. */
export async function measure(
  { leases }: VaultContext,
  { namespace: bytes, end }: m.MeasureRequest,
): Promise<m.MeasureReply> {
  const namespace = toNamespace(bytes);
  if (end) return await leases.end(namespace);
  leases.begin(namespace);
  return { records: 0, bytes: 0 };
}
