// Owns the status of a sidecar, in the shape that `tierkv status` and tests read.
import type { RecordClass } from "../base/block.ts";
import { RESTORES_SHOWN_MAX } from "../base/limits/seen.ts";
import type { HistogramSnapshot, SidecarCounters, SidecarTime } from "../base/metrics.ts";
import { coreInfo, recordKeysStatus } from "../base/native.ts";
import { nowMs, wallClockMs } from "../base/time.ts";
import type { BlockStore, Tier } from "../client/source.ts";
import type { Config } from "../config/config.ts";
import type { SourceKind } from "../discovery/source.ts";
import type { EngineStatus } from "./engine/engine-status.ts";
import type { CodecChoice, Form } from "./save/codec-choice.ts";
import type { Saver } from "./save/save.ts";
import type { Account, Decisions } from "./trace/decisions.ts";
import type { Ledger, LedgerStatus } from "./trace/ledger.ts";
import type { Reuse, ReuseStatus } from "./trace/reuse.ts";
import type { PoolMembers } from "./vaults/pool-members.ts";
import type { Pools, VaultClients } from "./vaults/pools.ts";
import type { VaultSeen, VaultWatch } from "./vaults/vault-watch.ts";

export interface VaultStatus {
  /** Address as configured or discovered. */
  address: string;
  /** Source that named it: the configuration, or a discovery service. */
  source: SourceKind;
  /** vault: a process that answers · shared: memory that the sidecars of this machine map. */
  tier: Tier;
  /** `up`, `down` (also where it has not answered the latest look), `refused` (not used, for want of credentials), or `unknown` (not asked yet). */
  state: string;
  /** Why the vault is not up, and the fix; empty while it is. */
  trouble?: string;
  /** Milliseconds since the start of the latest look for `seen` that has ended, with an answer or without; null: none has. */
  lookedMs: number | null;
  /** State of its lanes; records travel only while it is up. shared: there are none. */
  lanes: string;
  /** Paths to it that are out of use while another is used, as `host:port` or `host:port from local address`. */
  cut?: readonly string[];
  /** True for a vault of this user on this machine: records are read where they stand, in each other's memory, instead of sent. */
  isLent: boolean;
  /** Its part of the class's blocks; 0: it has left the pool, or is being drained. */
  share: number;
  /** True for a vault that has left the pool, which is asked for a while for blocks that it may still hold; left out: it belongs to the pool. */
  hasLeft?: true;
  /** Whether it takes no new records, because it is being drained. */
  isDraining: boolean;
  /** Blocks missing there although a later block of the same prompt was held. */
  holes: number;
  /** Blocks found there although another vault owns them. */
  moved: number;
  /** Form chosen by `[codec] kv = "auto"`; null: none went there, or the codec is fixed. */
  form: Form | null;
  /** Of a store that others run: what it refused (`refused_`) and what requests to it cost (`requests_`); null: a vault. */
  counts: Readonly<Record<string, number>> | null;
  /** The bucket behind it, which is asked for what it lacks; left out: there is none. */
  behind?: {
    address: string;
    state: string;
    trouble: string;
    /** As of a store. */
    counts?: Readonly<Record<string, number>>;
  };
  /** Its statistics; null: no answer, or none requested yet. */
  seen: VaultSeen | null;
}

export interface SidecarStatus {
  /** Milliseconds since 1970. */
  at: number;
  /** Release of the sidecar. */
  version: string;
  /** Process id. */
  pid: number;
  /** Milliseconds since its start. */
  uptimeMs: number;
  /** Path of its socket. */
  socket: string;
  /** Connected engines. */
  engines: EngineStatus[];
  /** Bytes of all engines' arenas. */
  arenaBytes: number;
  /** Configured ceiling of one engine's arena in bytes; null: it follows from free memory. */
  arenaBytesMax: number | null;
  /** Slots of all engines. */
  slots: number;
  /** Empty slots of all engines. */
  slotsFree: number;
  /** In the order of the configuration. */
  vaults: Record<RecordClass, VaultStatus[]>;
  /** Codec of attention KV, or all codecs in use where vaults differ. */
  kvCodec: string;
  /** Blocks that wait to be saved. */
  saves: { queuedBlocks: number; queuedBytes: number };
  /** Counts since the sidecar's start ([metrics](metrics.md) without `tierkv_sidecar_`). */
  counters: Record<string, number>;
  /** Durations of the parts of requests. */
  times: Record<SidecarTime, HistogramSnapshot>;
  /** Savings by restores. */
  ledger: LedgerStatus;
  /** Latest restores, newest last. */
  restores: Account[];
  /** Time and bytes stored between two uses of a block. */
  reuse: ReuseStatus;
}

export interface StatusSources {
  config: Config;
  startedMs: number;
  vaults: VaultClients;
  members: Pick<PoolMembers, "sourceOf" | "gates" | "isMember">;
  pools: Pools;
  saver: Saver;
  counters: SidecarCounters;
  ledger: Ledger;
  watch: VaultWatch;
  codecs: CodecChoice;
  decisions: Decisions;
  reuse: Reuse;
}

export function describeSidecar(sources: StatusSources, engines: EngineStatus[]): SidecarStatus {
  const { config, startedMs, saver, counters } = sources;
  const arenas = engines.flatMap(({ arena }) => (arena === null ? [] : [arena]));
  const sum = (of: (arena: (typeof arenas)[number]) => number): number =>
    arenas.reduce((total, arena) => total + of(arena), 0);
  return {
    at: Math.round(wallClockMs()),
    version: coreInfo().version,
    pid: process.pid,
    uptimeMs: Math.round(nowMs() - startedMs),
    socket: config.sidecar.socket,
    engines,
    arenaBytes: sum(({ bytes }) => bytes),
    arenaBytesMax: config.sidecar.arenaBytes,
    slots: sum(({ slotCount }) => slotCount),
    slotsFree: sum(({ freeSlots }) => freeSlots),
    vaults: {
      kv: describeVaults(sources, "kv"),
      ssm: describeVaults(sources, "ssm"),
    },
    kvCodec: sources.codecs.names,
    saves: { queuedBlocks: saver.queuedBlocks, queuedBytes: saver.queuedBytes },
    counters: { ...counters.snapshot(), records_unopened: recordKeysStatus().unopened },
    times: counters.times(),
    ledger: sources.ledger.status(),
    restores: sources.decisions.restores(RESTORES_SHOWN_MAX),
    reuse: sources.reuse.status(),
  };
}

function describeVaults(
  { vaults, members, pools, watch, codecs }: StatusSources,
  name: RecordClass,
): VaultStatus[] {
  return vaults[name].map((client, vault) => {
    const { address, tier, isDraining, lanes = tier, cut = [], isLent = false } = client;
    const { state, trouble } = stateOf(client, watch);
    const [share, seen] = [pools[name].shareOf(vault), watch.seen(client)];
    const source = members.sourceOf(client);
    const { holes = 0, moved = 0 } = members.gates[name][vault] ?? {};
    const form = name === "kv" ? codecs.formOf(address) : null;
    const lookedMs = watch.lookedMs(client);
    const now = { address, source, state, trouble, lookedMs, lanes, cut };
    const counts = client.counts?.() ?? null;
    const behind = client.behind === undefined ? {} : { behind: placeOf(client.behind) };
    const left = members.isMember(client) ? {} : { hasLeft: true as const };
    return {
      ...now,
      isLent,
      share,
      isDraining,
      ...left,
      tier,
      holes,
      moved,
      form,
      counts,
      ...behind,
      seen,
    };
  });
}

/** A vault that is used until several calls have failed is down for a viewer who gets no answer. */
function stateOf(
  client: BlockStore,
  watch: VaultWatch,
): { state: VaultStatus["state"]; trouble: string } {
  const { state, trouble } = client;
  const unanswered = watch.trouble(client);
  const isSilent = (state === "up" || state === "unknown") && unanswered !== "";
  return isSilent ? { state: "down", trouble: unanswered } : { state, trouble };
}

function placeOf(bucket: BlockStore): NonNullable<VaultStatus["behind"]> {
  const { address, state, trouble } = bucket;
  return { address, state, trouble, counts: bucket.counts?.() ?? {} };
}
