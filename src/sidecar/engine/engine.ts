// Owns one engine: its scheduler and worker connections, its arena, and the order in which all of it starts and ends.
import { Arena } from "../../arena/arena.ts";
import { planArena } from "../../arena/sizing.ts";
import type { RecordClass } from "../../base/block.ts";
import { AMX_FIRST_TOKENS, ARENA_POLL_MS, RESTORE_SLOTS_MIN } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import { randomId } from "../../base/time.ts";
import type { Takes } from "../../client/flush-feed.ts";
import { EngineRates } from "../../cost/engine-rates.ts";
import type { Step } from "../../cost/prefill.ts";
import type { Stage } from "../restore/arena-context.ts";
import { audit } from "../restore/audit.ts";
import { CostModel } from "../restore/cost-model.ts";
import { Fetcher } from "../restore/fetcher.ts";
import { Restorer } from "../restore/restore.ts";
import type { RestorerOptions } from "../restore/restore.ts";
import { endsAnywhere } from "../restore/windows.ts";
import type { CodecChoice } from "../save/codec-choice.ts";
import type { Decided, FidelityRules } from "../save/fidelity.ts";
import type { Copies } from "../save/reoffer.ts";
import type { Saver } from "../save/save.ts";
import { BlockCache } from "../slots/block-cache.ts";
import { registerGroups } from "../slots/groups.ts";
import type { Connection } from "../socket/connection.ts";
import type { Diverged } from "../socket/divergence.ts";
import type { Hello } from "../socket/hello.ts";
import type {
  CommonMessage,
  NamingState,
  Register,
  SchedulerMessage,
  Unasked,
  WorkerMessage,
} from "../socket/messages.ts";
import type { FetchPriority } from "../vaults/fetch-priority.ts";
import type { VaultClients } from "../vaults/pools.ts";
import type { Links } from "../vaults/vaults.ts";
import { arenaStatusOf, fidelityOf, saidBy } from "./engine-status.ts";
import type { EngineStatus } from "./engine-status.ts";
import { Ranks } from "./ranks.ts";
import { WorkerRank } from "./worker-rank.ts";

type OfRestorer = "waitMs" | "stallMs" | "pools" | "gates" | "decisions" | "reuse" | "receipts";

export interface EngineOptions extends Pick<
  RestorerOptions,
  OfRestorer | "outcomes" | "quarantine" | "counters" | "logger"
> {
  arenaBytesMax: number | null;
  arenaDir: string | null;
  freeBytes(): number;
  /** Checked against the engine's head dim; null: not checked. */
  kvDim: number | null;
  codecs: CodecChoice;
  rules: FidelityRules;
  vaults: VaultClients;
  links: Links;
  priority: FetchPriority;
  /** Restore also where computing is faster. */
  isAlways: boolean;
  saver: Saver;
}

/**
 * An engine lives from the first hello of its id until its last connection ends. When one connection ends, the others are closed
 * and the arena is retired, because the lost side may still read or write slots.
 */
export class Engine {
  readonly id: string;
  readonly world: number;
  readonly shards: number;
  /** Progress of the name as the scheduler last reported; 100 % once the name itself has come. */
  naming: NamingState = { percent: 0, refused: "", distrusted: false };
  /** Whether blocks are left that its workers have not copied, as the scheduler last reported. */
  isSaving = false;
  readonly #options: EngineOptions;
  readonly #logger: Logger;
  readonly #onRetired: (engine: Engine) => void;
  readonly #onGone: (engine: Engine) => void;
  readonly #ranks: Ranks;
  readonly #connections = new Set<Connection>();
  readonly #restorer: Restorer;
  readonly #rates: EngineRates;
  /** Decided anew for each life of the engine, and never while it lives: its own cache may hold blocks restored lossily. */
  #decided: Decided;
  #scheduler: Connection | null = null;
  #stage: Stage | null = null;
  #model = "";
  #tokensMin = 0;
  #lengths: Pick<Register, "maxModelLen" | "stepTokens"> = { maxModelLen: 0, stepTokens: 0 };
  /** Hello of the scheduler, once there is one; before, of the first connection. */
  #hello: Hello;
  #isRestoring = false;
  #isRetired = false;
  /** Whether a step has computed enough tokens for the kernel to grant AMX tiles. */
  #hasTiles = false;

  constructor(
    hello: Hello,
    options: EngineOptions,
    events: { onRetired(engine: Engine): void; onGone(engine: Engine): void },
  ) {
    const { engine, world, shards } = hello;
    this.id = engine;
    this.world = world;
    this.#hello = hello;
    this.shards = shards;
    this.#ranks = new Ranks(hello);
    this.#options = options;
    this.#onRetired = events.onRetired;
    this.#onGone = events.onGone;
    this.#logger = options.logger.child({ engine });
    this.#rates = new EngineRates(options.isAlways);
    this.#decided = options.rules.decide(null);
    this.#restorer = new Restorer({
      ...options,
      engine,
      shards,
      logger: this.#logger,
      isWindowed: () => this.#hello.isWindowed,
      send: (...messages) => this.#scheduler?.send(...messages),
    });
  }

  /** Throws ENGINE_REFUSED when the engine has a scheduler or the hello does not fit the others. */
  addScheduler(connection: Connection, hello: Hello): void {
    this.#ranks.checkHello(hello);
    if (this.#scheduler !== null) throw this.#ranks.taken("its scheduler");
    this.#scheduler = connection;
    this.#hello = hello;
    this.#connections.add(connection);
  }

  /** Notes what the scheduler reports beside its counters. */
  hear({ unasked, diverged, naming, saving }: Extract<CommonMessage, { t: "counts" }>): void {
    this.note(unasked, diverged);
    if (naming !== null) this.#hearNaming(naming);
    if (saving !== null) this.isSaving = saving;
  }

  /** Notes the progress of the name. A distrusted namespace is quarantined. */
  #hearNaming(naming: NamingState): void {
    this.naming = naming;
    const { namespace } = this.#restorer;
    if (!naming.distrusted || namespace === null) return;
    const { quarantine, counters } = this.#options;
    if (!quarantine.add(namespace)) return;
    counters.add("namespaces_quarantined");
    const name = namespace.toString("hex");
    this.#logger.error(
      { model: this.#model, namespace: name, reason: naming.refused },
      "stored blocks differ from what the engine computes: none of them is used until they are flushed; then restart the engine",
    );
  }

  addWorker(connection: Connection, hello: Hello): WorkerRank {
    this.#ranks.checkHello(hello);
    const { rank } = hello;
    this.#ranks.checkFree(rank);
    const { saver, counters } = this.#options;
    const shard = this.#ranks.shardOf(rank);
    const shardCount = this.shards;
    const worker = new WorkerRank({ connection, rank, shard, shardCount, saver, counters });
    this.#ranks.add(worker);
    this.#connections.add(connection);
    return worker;
  }

  /** After the welcome, tells a late scheduler that restores are open. */
  sayHello(connection: Connection): void {
    if (connection === this.#scheduler && this.#isRestoring) this.#sendRestore();
  }

  onSchedulerMessage(message: SchedulerMessage): void {
    if (this.#isRetired) return;
    if (message.t === "prefetch") {
      if (this.#stage !== null) this.#ranks.checkAsked(message.groups);
      this.#restorer.prefetch(message);
    } else if (message.t === "audit") {
      const { namespace } = this.#restorer;
      const of = { ...this.#options, shards: this.shards, namespace };
      void audit(message, of).then((answer) => this.#scheduler?.send(answer));
    } else if (message.t === "loaded") {
      this.#restorer.loaded(message);
    } else if (message.t === "asked") {
      this.#restorer.askedFor(message.plan);
    } else if (message.t === "release") {
      this.#restorer.release(message);
    } else if (message.t === "answered") {
      this.#restorer.answered(message);
    } else if (message.t === "weights") {
      this.#onWeights(message);
    } else {
      this.#options.codecs.name(message.namespace, this.#decided.codecs);
      this.#restorer.namespace = message.namespace;
      this.naming = { ...this.naming, percent: 100 };
      this.#model = message.model;
      this.#options.saver.nameModel(message.namespace, message.model);
      const namespace = message.namespace.toString("hex").slice(0, 16);
      this.#logger.info({ namespace, model: message.model }, "engine named its namespace");
    }
  }

  /** Decides whether this engine's blocks may be lossy, and tells it the fidelity that belongs to its name. */
  #onWeights({ weights, order }: Extract<SchedulerMessage, { t: "weights" }>): void {
    this.#decided = this.#options.rules.decide({ weights, order });
    const { codecs, ...told } = this.#decided;
    this.#logger.info({ weights, order, codec: told.codec, why: told.why }, "fidelity decided");
    const otherwise = this.#options.rules.decide(null).codecs.fidelity;
    this.#scheduler?.send({ t: "fidelity", weights, fidelity: codecs.fidelity, otherwise });
  }

  /** Notes requests without a prefetch, each with its reason, and requests that stop matching an earlier one. */
  note(unasked: readonly Unasked[], diverged: readonly Diverged[]): void {
    const { decisions } = this.#options;
    for (const one of unasked) decisions.unasked(this.id, one);
    for (const one of diverged) decisions.diverged(this.id, one);
  }

  onWorkerMessage(worker: WorkerRank, message: WorkerMessage): void {
    switch (message.t) {
      case "register":
        if (!this.#isRetired) this.#register(worker, message);
        break;
      case "mapped":
        this.#onMapped(worker, message.arena);
        break;
      case "unmapped":
        if (message.arena === this.#stage?.wireId) worker.onUnmapped(message.reason);
        break;
      case "save":
        worker.save(message, this.#restorer.namespace);
        break;
      case "return":
        worker.giveBack(message.arena, message.slots);
        break;
      default:
        message satisfies never;
    }
  }

  /** Learns from the engine's measured steps, and reports a new shortest prompt. */
  learn(steps: readonly Step[]): void {
    if (steps.length === 0) return;
    this.#hasTiles ||= steps.some(({ tokens }) => tokens >= AMX_FIRST_TOKENS);
    const tokensMin = this.#stage?.costs.learn(steps) ?? 0;
    if (tokensMin === this.#tokensMin) return;
    this.#tokensMin = tokensMin;
    this.#scheduler?.send({ t: "pace", tokens_min: tokensMin });
  }

  onEnd(connection: Connection): void {
    this.#connections.delete(connection);
    this.retire();
    if (this.#connections.size === 0) void this.#leave();
  }

  /** Stops all writers of slots and closes the connections; frames already sent are still read. */
  retire(): void {
    if (this.#isRetired) return;
    this.#isRetired = true;
    this.#onRetired(this);
    clearInterval(this.#stage?.poll);
    this.#restorer.close();
    this.#stage?.fetcher.close();
    for (const worker of this.#ranks) worker.stop();
    for (const connection of this.#connections) connection.close();
  }

  /** Withdraws the blocks of a class that `takes` names from the arena, and returns their number and bytes. */
  flush(
    recordClass: RecordClass,
    takes: Takes,
    vault: number | null,
  ): { blocks: number; bytes: number } {
    const dropped = this.#stage?.cache.flush(recordClass, takes, vault) ?? [];
    const { sizes } = this.#ranks;
    const bytes = dropped.reduce((sum, { group }) => sum + sizes.sourceBytes(group), 0);
    return { blocks: dropped.length, bytes };
  }

  /** Returns access to the blocks in the arena; null: there is no arena yet, or no namespace, or it is quarantined. */
  copies(): Copies | null {
    const { namespace } = this.#restorer;
    const stage = this.#stage;
    if (stage === null || namespace === null || this.#isRetired) return null;
    if (this.#options.quarantine.has(namespace)) return null;
    return {
      arena: stage.arena.id,
      cache: stage.cache,
      shards: this.shards,
      namespace,
      groupAt: (group, shard) => this.#ranks.groupAt(group, shard),
      isWorthSaving: () => this.#isWorthSaving(stage),
    };
  }

  status(): EngineStatus {
    const stage = this.#stage;
    return {
      ...saidBy(this.#hello, this.#hasTiles),
      model: this.#model,
      namespace: this.#restorer.namespace?.toString("hex").slice(0, 16) ?? null,
      naming: this.naming,
      workers: this.#ranks.count,
      hasScheduler: this.#scheduler !== null,
      isRestoring: this.#isRestoring,
      isSaving: this.isSaving,
      plans: this.#restorer.planCount,
      retainedBlocks: stage?.cache.retained ?? 0,
      fetches: stage?.fetcher.inFlight ?? 0,
      forecast: stage?.costs.forecast(this.#lengths.maxModelLen) ?? [],
      footprint: stage?.costs.footprint() ?? null,
      stepTokens: this.#lengths.stepTokens,
      groups: this.#ranks.kinds(),
      fidelity: fidelityOf(this.#decided, this.#ranks.dtype()),
      arena: stage === null ? null : this.#arenaStatus(stage),
    };
  }

  #arenaStatus(stage: Stage): EngineStatus["arena"] {
    const passesWindows = this.#hello.isWindowed && endsAnywhere(this.#ranks.kinds());
    return arenaStatusOf(stage, this.#ranks, this.#lengths.maxModelLen, passesWindows);
  }

  #register(worker: WorkerRank, message: Register): void {
    if (worker.groups !== null) throw this.#ranks.taken(`rank ${worker.rank} has registered and`);
    const groups = registerGroups(message.groups, { engine: this.id, kvDim: this.#options.kvDim });
    this.#model = message.model;
    this.#lengths = message;
    if (this.#ranks.register(worker, groups)) this.#openStage(message);
  }

  /** Makes the arena once all ranks have registered, and offers it to them. */
  #openStage({ maxModelLen, stepTokens }: Register): void {
    this.#rates.prefill.stepTokens = stepTokens;
    const { arenaBytesMax, arenaDir, freeBytes } = this.#options;
    const plan = planArena({
      engine: this.id,
      ranks: this.#ranks.slotNeeds(),
      maxModelLen,
      stepTokens,
      bytesMax: arenaBytesMax,
      freeBytes: freeBytes(),
    });
    // Never 0, and random, because a worker may still map an arena of an earlier sidecar.
    const wireId = Number.parseInt(randomId(4), 16) || 1;
    const { slotBytes, slotCount } = plan;
    const arena = new Arena({ slotBytes, slotCount, dir: arenaDir }, wireId);
    const stage = this.#makeStage(arena, wireId, plan.saveSlots);
    this.#stage = stage;
    const { bytes, path } = arena;
    this.#options.saver.room.addArena(bytes);
    const made = { bytes, slotBytes, slotCount, saveSlots: plan.saveSlots, path };
    this.#logger.info(made, "arena made");
    for (const worker of this.#ranks) {
      worker.openSaves(arena, stage.wireId, plan.saveSlots, () => this.#isWorthSaving(stage));
      const shape = { bytes, slot_bytes: slotBytes, slot_count: slotCount };
      worker.connection.sendArena({ t: "arena", arena: wireId, ...shape }, arena.id);
    }
  }

  #isWorthSaving({ costs }: Stage): boolean {
    return this.#hello.isProducer || costs.isWorthSaving(this.#lengths.maxModelLen);
  }

  #makeStage(arena: Arena, wireId: number, saveSlots: number): Stage {
    const { world, shards } = this;
    const { saver } = this.#options;
    const cache = new BlockCache({
      arena,
      shards,
      saveSlots: saveSlots * world,
      onUnwanted: (block) => fetcher.dropUnwanted(block),
      onRoom: () => this.#restorer.onRoom(),
      onPlaced: ({ recordClass, key }) => {
        const { fidelity } = this.#decided.codecs;
        if (fidelity !== 0 && recordClass === "kv") saver.decoded.note(key);
      },
    });
    const fetcher = new Fetcher({
      ...this.#options,
      logger: this.#logger,
      cache,
      arena: arena.id,
      shards,
      fidelityOf: (namespace) => this.#options.codecs.fidelityOf(namespace),
      rates: this.#rates,
      callMs: this.#options.waitMs * 2,
      geometryOf: (group, shard) => this.#ranks.groupAt(group, shard).geometry,
      blockBytes: this.#ranks.sizes.blockBytes,
    });
    const costs = new CostModel({
      rates: this.#rates,
      links: this.#options.links,
      cache,
      shards,
      groups: () => this.#ranks.groupIds(),
      ...this.#ranks.sizes,
      fetcher,
    });
    const poll = setInterval(() => this.#onProgress(), ARENA_POLL_MS);
    return { arena, wireId, cache, fetcher, costs, poll };
  }

  #onMapped(worker: WorkerRank, wireId: number): void {
    if (this.#isRetired || wireId !== this.#stage?.wireId) return;
    worker.isMapped = true;
    this.#onProgress();
  }

  /** Called when more of the arena is touched, or another rank has mapped it. */
  #onProgress(): void {
    const stage = this.#stage;
    if (stage === null) return;
    const { touchedSlots, slotCount, failed } = stage.arena.status();
    stage.cache.setTouched(touchedSlots, failed !== null);
    for (const worker of this.#ranks) worker.topUp();
    const enough = Math.max(1, Math.min(RESTORE_SLOTS_MIN, stage.cache.capacityInTime));
    if (!this.#isRestoring && this.#ranks.areMapped && stage.cache.capacity >= enough) {
      this.#openRestores(stage);
    }
    if (touchedSlots < slotCount && failed === null) return;
    clearInterval(stage.poll);
    if (failed !== null) {
      this.#logger.error(
        { reason: failed, touchedSlots, slotCount },
        "shared memory stays smaller than planned",
      );
    }
  }

  #openRestores({ arena, cache, fetcher, costs }: Stage): void {
    this.#isRestoring = true;
    const { codecs, vaults, priority, waitMs } = this.#options;
    const of = (namespace: Buffer): number => codecs.fidelityOf(namespace);
    const recut = { arena: arena.id, fidelityOf: of, vaults, priority, callMs: waitMs };
    this.#restorer.open({ cache, fetcher, costs, recut, ...this.#ranks.sizes });
    this.#sendRestore();
  }

  #sendRestore(): void {
    this.#scheduler?.send({ t: "restore", arena: this.#stage?.wireId ?? 0, on: true });
  }

  /** Closes the arena after the last connection, once running saves are encoded. */
  async #leave(): Promise<void> {
    await Promise.all([...this.#ranks].map((worker) => worker.leave()));
    this.#options.saver.room.addArena(-(this.#stage?.arena.bytes ?? 0));
    this.#stage?.arena.close();
    this.#onGone(this);
  }
}
