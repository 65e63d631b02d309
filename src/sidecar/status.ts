// Owns what a sidecar says of itself: the shape that `tierkv status` and tests read.
import type { RecordClass } from "../block.ts";
import { isRemote } from "../client/vault.ts";
import type { Tier } from "../client/vault.ts";
import type { Config } from "../config/config.ts";
import type { SourceKind } from "../discovery/source.ts";
import { RESTORES_SHOWN_MAX } from "../limits/seen.ts";
import type { HistogramSnapshot, SidecarCounters, SidecarTime } from "../metrics.ts";
import { coreInfo, recordKeysStatus } from "../native.ts";
import { nowMs, wallClockMs } from "../time.ts";
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
  address: string;
  /** By whom it is known: the configuration, or who was asked. */
  source: SourceKind;
  /** vault: a process that answers · shared: memory that the sidecars of this machine map. */
  tier: Tier;
  state: string;
  /** Why it is not up, and what to do; empty where it is. */
  trouble?: string;
  /** shared: nothing travels. up: records travel; else none does. */
  lanes: string;
  /** About which part of its class's blocks it owns; 0: it has left the pool, or is being emptied. */
  share: number;
  isDraining: boolean;
  /** Blocks of look-ups that it did not hold, with one behind them held; and those that it held for another owner. */
  holes: number;
  moved: number;
  /** As what blocks go there by `[codec] kv = "auto"`; null: none went, or the codec is fixed. */
  form: Form | null;
  /** What it said of itself; null: it has not answered, or nobody had looked before. */
  seen: VaultSeen | null;
}

export interface SidecarStatus {
  /** Since 1970, ms. */
  at: number;
  version: string;
  pid: number;
  uptimeMs: number;
  socket: string;
  engines: EngineStatus[];
  /** Shared memory of all engines. */
  arenaBytes: number;
  /** Ceiling of one engine's arena as configured; null: it follows from the memory that is free. */
  arenaBytesMax: number | null;
  /** Of all engines. */
  slots: number;
  slotsFree: number;
  /** In the order of the configuration. */
  vaults: Record<RecordClass, VaultStatus[]>;
  /** How attention KV is stored: a codec, or those in use, one per vault. */
  kvCodec: string;
  saves: { queuedBlocks: number; queuedBytes: number };
  counters: Record<string, number>;
  /** What the parts of requests took. */
  times: Record<SidecarTime, HistogramSnapshot>;
  ledger: LedgerStatus;
  /** The latest, the latest last. */
  restores: Account[];
  reuse: ReuseStatus;
}

export interface StatusSources {
  config: Config;
  startedMs: number;
  vaults: VaultClients;
  members: Pick<PoolMembers, "sourceOf" | "gates">;
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
    const { address, tier, state, isDraining } = client;
    const trouble = isRemote(client) ? client.trouble : "";
    const lanes = tier === "shared" ? tier : client.lanes;
    const [share, seen] = [pools[name].shareOf(vault), watch.seen(client)];
    const source = members.sourceOf(client);
    const { holes = 0, moved = 0 } = members.gates[name][vault] ?? {};
    const form = name === "kv" ? codecs.formOf(address) : null;
    const known = { address, source, state, trouble, lanes, share, isDraining };
    return { ...known, tier, holes, moved, form, seen };
  });
}
