// Owns the assembly of a sidecar: encode threads, saves, engines and the local socket, started and stopped in order.
import { statfsSync } from "node:fs";
import { availableParallelism } from "node:os";
import { availableMemory } from "node:process";
import type { RecordClass } from "../base/block.ts";
import type { Running } from "../base/lifecycle.ts";
import { SAVE_CREDITS_MAX } from "../base/limits/general.ts";
import { VERIFY_SAMPLED_EVERY } from "../base/limits/truth.ts";
import type { Logger } from "../base/log.ts";
import type { SidecarCounters } from "../base/metrics.ts";
import { coreInfo, sweepArenaDir } from "../base/native.ts";
import { nowMs } from "../base/time.ts";
import type { BlockStore } from "../client/source.ts";
import { EncodePool } from "../codec/pool.ts";
import type { Config } from "../config/config.ts";
import { ReceiptFolder } from "../receipt/folder.ts";
import type { EngineFidelity, EngineStatus } from "./engine/engine-status.ts";
import type { EngineOptions } from "./engine/engine.ts";
import { Receipts } from "./restore/receipts.ts";
import { CodecChoice } from "./save/codec-choice.ts";
import type { Form } from "./save/codec-choice.ts";
import { chooseCodecs } from "./save/codecs.ts";
import { FidelityRules } from "./save/fidelity.ts";
import { Reoffer } from "./save/reoffer.ts";
import { Saver } from "./save/save.ts";
import { StoreQueue } from "./save/store-queue.ts";
import type { OnStored } from "./save/store-queue.ts";
import { ShimServer } from "./shim-server.ts";
import { LOCAL_PROTOCOL } from "./socket/hello.ts";
import { describeSidecar } from "./status.ts";
import type { SidecarStatus } from "./status.ts";
import { BlockOutcomes } from "./trace/block-outcomes.ts";
import { Decisions } from "./trace/decisions.ts";
import type { Account, Ended } from "./trace/decisions.ts";
import { Ledger } from "./trace/ledger.ts";
import { Reuse } from "./trace/reuse.ts";
import { FetchPriority } from "./vaults/fetch-priority.ts";
import { Flushes } from "./vaults/flushes.ts";
import { PoolMembers } from "./vaults/pool-members.ts";
import type { MemberSource } from "./vaults/pool-members.ts";
import { openPools, redundancyOf } from "./vaults/pools.ts";
import type { Pools, VaultClients } from "./vaults/pools.ts";
import { Quarantine } from "./vaults/quarantine.ts";
import { Sessions } from "./vaults/sessions.ts";
import { VaultWatch } from "./vaults/vault-watch.ts";
import type { Links, LookupGates } from "./vaults/vaults.ts";

export interface SidecarOptions {
  config: Config;
  /** Clients owned by the caller, who closes them after the sidecar. */
  vaults: VaultClients;
  /** Source of later pool members; null, or left out: the vaults never change. */
  members?: MemberSource | null;
  /** Called for each ended request and each ended batch of saves; null, or left out: no traces. */
  onEnded?: ((ended: Ended) => void) | null;
  onStored?: OnStored | null;
  logger: Logger;
  counters: SidecarCounters;
}

export interface RunningSidecar extends Running {
  readonly socketPath: string;
  /** Milliseconds without a connected engine; 0 while there is one. */
  idleMs(): number;
  status(): SidecarStatus;
  /** Same, and refreshes the vaults' statistics for the next call. */
  look(): SidecarStatus;
  /** Returns accounts of the latest `most` requests whose id begins with `req`. */
  explain(req: string, most: number): Explained[];
}

/** An account with the present forms of blocks for its vaults, and the fidelity of its engine while that is connected. */
export interface Explained extends Account {
  forms?: ({ address: string } & Form)[];
  fidelity?: EngineFidelity;
}

/** Serves until closed. Throws ADDRESS_IN_USE when another sidecar serves the socket, LISTEN_FAILED when its path is unfit. */
export async function startSidecar(options: SidecarOptions): Promise<RunningSidecar> {
  const { config, counters, logger } = options;
  const { socket, arenaDir } = config.sidecar;
  const startedMs = nowMs();
  const pool = new EncodePool();
  const ledger = new Ledger(config.ledger.watts);
  const common = openCommon(options, ledger);
  const { members } = common;
  const vaults = members.clients;
  const watch = new VaultWatch(vaults, () => flushes.begin());
  const stores = openStores(options, common);
  const saver = newSaver(options, common, pool, stores);
  const status = (): SidecarStatus =>
    describeSidecar(
      { config, startedMs, vaults, saver, counters, ledger, watch, ...common },
      server.engines(),
    );
  const look = (): SidecarStatus => {
    watch.look();
    return status();
  };
  const flushes = new Flushes({
    vaults,
    socket,
    dropCopies: (recordClass, takes, vault) => server.flush(recordClass, takes, vault),
    dropSaves: (recordClass, takes, vault) => saver.flush(recordClass, takes, vault),
    forgetLeavers: (recordClass) => members.forgetLeavers(recordClass),
    modelOf: (recordClass, namespace) => saver.modelOf(recordClass, namespace),
    outcomes: common.outcomes,
    quarantine: common.quarantine,
    counters,
    logger,
  });
  const server = newServer(options, common, saver, look, () => flushes.begin());
  try {
    await server.listen();
    // Swept only after listening, because another sidecar on the socket may use its arenas.
    if (arenaDir !== null) sweepArenaDir(arenaDir);
  } catch (error) {
    await pool.close();
    throw error;
  }
  const reoffer = startReoffer(options, common, { pool, stores, saver, server, flushes });
  members.follow((client, index) => {
    const { name } = client;
    const store = openStore(options, common, client, index);
    if (store === undefined) return;
    for (const other of stores[name]) store.learnFrom(other);
    stores[name][index] = store;
    saver.watch(store);
    flushes.add(client);
  });
  let closing: Promise<void> | null = null;
  const close = async (): Promise<void> => {
    reoffer.close();
    await server.close();
    await saver.drain();
    await flushes.close();
    members.close();
    await pool.close();
  };
  return {
    socketPath: socket,
    idleMs: () => server.idleMs(),
    status,
    look,
    explain: explainer(common, () => server.engines()),
    close: () => (closing ??= close()),
  };
}

function openCommon(options: SidecarOptions, ledger: Ledger): Common {
  const { config, vaults, members = null, counters, logger } = options;
  const poolMembers = new PoolMembers({ vaults, source: members, logger });
  return {
    members: poolMembers,
    codecs: new CodecChoice(chooseCodecs(config), {
      threads: Math.max(1, Math.min(config.sidecar.lanes, Math.floor(availableParallelism() / 2))),
      logger,
    }),
    rules: new FidelityRules(config, logger),
    pools: openPools(poolMembers.clients, {
      ...redundancyOf(config.cluster.redundancy),
      isMember: (client: BlockStore) => poolMembers.isMember(client),
      isForgotten: (client: BlockStore) => poolMembers.isForgotten(client),
    }),
    links: poolMembers.links,
    gates: poolMembers.gates,
    priority: new FetchPriority(),
    outcomes: new BlockOutcomes(),
    quarantine: new Quarantine(),
    decisions: new Decisions(counters, logger, ledger, options.onEnded),
    reuse: new Reuse(counters),
  };
}

/** One restore in this many is checked; 0: none. */
const VERIFY_EVERY = { off: 0, sampled: VERIFY_SAMPLED_EVERY, every: 1 } as const;

/** Parts shared by all engines. */
interface Common {
  members: PoolMembers;
  codecs: CodecChoice;
  rules: FidelityRules;
  pools: Pools;
  links: Links;
  gates: LookupGates;
  priority: FetchPriority;
  outcomes: BlockOutcomes;
  quarantine: Quarantine;
  decisions: Decisions;
  reuse: Reuse;
}

type Stores = Readonly<Record<RecordClass, StoreQueue[]>>;

function explainer(
  { decisions, codecs }: Common,
  engines: () => EngineStatus[],
): RunningSidecar["explain"] {
  return (req, most) => {
    const known = new Map(engines().map(({ id, fidelity }) => [id, fidelity]));
    return decisions.find(req, most).map((account) => ({
      ...account,
      ...fidelityIn(known, account),
      forms: account.vaults.flatMap((address) => {
        const form = codecs.formOf(address);
        return form === null ? [] : [{ address, ...form }];
      }),
    }));
  };
}

function fidelityIn(
  known: ReadonlyMap<string, EngineFidelity>,
  { engine }: Account,
): Pick<Explained, "fidelity"> {
  const fidelity = known.get(engine);
  return fidelity === undefined ? {} : { fidelity };
}

/** Starts the re-offering of blocks, which works only in idle time. */
function startReoffer(
  { counters, logger }: SidecarOptions,
  common: Common,
  {
    pool,
    stores,
    saver,
    server,
    flushes,
  }: { pool: EncodePool; stores: Stores; saver: Saver; server: ShimServer; flushes: Flushes },
): Reoffer {
  return new Reoffer({
    vaults: common.members.clients,
    isMember: (client) => common.members.isMember(client),
    stores,
    pool,
    codecs: common.codecs,
    copies: () => server.copies(),
    isIdle: () => common.priority.isFree && saver.queuedBlocks === 0 && !flushes.isUnderWay,
    counters,
    logger,
  });
}

function openStores(options: SidecarOptions, common: Common): Stores {
  const open = (recordClass: RecordClass): StoreQueue[] =>
    common.members.clients[recordClass].flatMap(
      (client, index) => openStore(options, common, client, index) ?? [],
    );
  return { kv: open("kv"), ssm: open("ssm") };
}

function openStore(
  { counters, logger, onStored = null }: SidecarOptions,
  { links, priority, outcomes }: Common,
  client: BlockStore,
  index: number,
): StoreQueue | undefined {
  const link = links[client.name][index];
  return link && new StoreQueue({ client, link, priority, outcomes, counters, logger, onStored });
}

function newSaver(
  options: SidecarOptions,
  { pools, codecs, outcomes, quarantine }: Common,
  pool: EncodePool,
  stores: Stores,
): Saver {
  const { counters, logger } = options;
  return new Saver({
    pool,
    pools,
    stores,
    codecs,
    outcomes,
    quarantine,
    counters,
    logger,
  });
}

function newServer(
  options: SidecarOptions,
  common: Common,
  saver: Saver,
  status: () => object,
  onEngine: () => void,
): ShimServer {
  const { config, counters, logger } = options;
  const { waitMs, stallMs, verify } = config.restore;
  const server: ShimServer = new ShimServer({
    socketPath: config.sidecar.socket,
    engine: engineOptions(options, common, saver),
    sessions: new Sessions({
      vaults: common.members.clients,
      pools: common.pools,
      counters,
      logger,
    }),
    explain: explainer(common, () => server.engines()),
    welcome: {
      t: "welcome",
      protocol: LOCAL_PROTOCOL,
      sidecar: coreInfo().version,
      wait_ms: waitMs,
      stall_ms: stallMs,
      verify_every: VERIFY_EVERY[verify],
      save_slots_max: SAVE_CREDITS_MAX,
    },
    status,
    onEngine,
    counters,
    logger,
  });
  return server;
}

/** Bytes that an arena could take: free memory, and free space on its file system. */
function freeBytes(arenaDir: string | null): number {
  if (arenaDir === null) return availableMemory();
  const { bavail, bsize } = statfsSync(arenaDir);
  return Math.min(availableMemory(), bavail * bsize);
}

function engineOptions(options: SidecarOptions, common: Common, saver: Saver): EngineOptions {
  const { config, counters, logger } = options;
  return {
    arenaBytesMax: config.sidecar.arenaBytes,
    arenaDir: config.sidecar.arenaDir,
    freeBytes: () => freeBytes(config.sidecar.arenaDir),
    kvDim: chooseCodecs(config, true).isLossy ? config.turboQuant.kvDim : null,
    waitMs: config.restore.waitMs,
    stallMs: config.restore.stallMs,
    vaults: common.members.clients,
    ...common,
    receipts: new Receipts({
      isAlways: config.receipts.when === "always",
      folder: new ReceiptFolder(config.receipts.dir, config.receipts.keep),
      fidelityOf: (namespace) => common.codecs.fidelityOf(namespace),
      modelOf: (namespace) => saver.modelOf("kv", namespace),
      counters,
      logger,
    }),
    isAlways: config.restore.when === "always",
    saver,
    counters,
    logger,
  };
}
