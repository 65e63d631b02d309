// Owns one engine: its scheduler and worker connections, its arena, and the order in which it comes up and goes away as a whole.
import { Arena } from "../arena/arena.ts";
import { planArena } from "../arena/sizing.ts";
import type { RecordClass } from "../block.ts";
import { TierkvError } from "../errors.ts";
import { ARENA_POLL_MS, RESTORE_SLOTS_MIN } from "../limits.ts";
import type { Logger } from "../log.ts";
import type { SidecarCounters } from "../metrics.ts";
import { EnginePace } from "../pace/engine-pace.ts";
import type { Step } from "../pace/prefill.ts";
import { randomId } from "../time.ts";
import type { Connection } from "./connection.ts";
import type { Decisions } from "./decisions.ts";
import { arenaStatusOf } from "./engine-status.ts";
import type { EngineStatus } from "./engine-status.ts";
import type { Fates } from "./fates.ts";
import { Fetcher } from "./fetcher.ts";
import type { Stage } from "./ground.ts";
import { groupsDiffer, registerGroups } from "./groups.ts";
import type { Groups } from "./groups.ts";
import type { Hello, Register, SchedulerMessage, WorkerMessage } from "./messages.ts";
import { Pacer } from "./pacer.ts";
import type { PacerOptions } from "./pacer.ts";
import { Restorer } from "./restore.ts";
import type { RightOfWay } from "./right-of-way.ts";
import type { Saver } from "./save.ts";
import { Seat } from "./seat.ts";
import { Shelf } from "./shelf.ts";
import type { Links, LookupGates, VaultClients } from "./vaults.ts";

export interface EngineOptions {
  arenaBytesMax: number;
  arenaDir: string | null;
  freeBytes(): number;
  /** Checked against the engine's head dim; null: not checked. */
  kvDim: number | null;
  fidelity: number;
  waitMs: number;
  stallMs: number;
  vaults: VaultClients;
  gates: LookupGates;
  links: Links;
  way: RightOfWay;
  decisions: Decisions;
  fates: Fates;
  /** Restore also where computing is faster. */
  isAlways: boolean;
  saver: Saver;
  counters: SidecarCounters;
  logger: Logger;
}

/**
 * Lives from the first hello of its id until its last connection has ended. When one connection ends the others are
 * closed and the arena is retired: nobody can know whether the lost side still reads or writes slots.
 */
export class Engine {
  readonly id: string;
  readonly world: number;
  readonly shards: number;
  readonly #options: EngineOptions;
  readonly #logger: Logger;
  readonly #onRetired: (engine: Engine) => void;
  readonly #onGone: (engine: Engine) => void;
  readonly #seats = new Map<number, Seat>();
  readonly #connections = new Set<Connection>();
  readonly #restorer: Restorer;
  readonly #pace: EnginePace;
  readonly #sizes: Pick<PacerOptions, "blockBytes" | "sourceBytes" | "shapeOf"> = {
    shapeOf: (group) => this.#groupAt(group, 0).spec,
    sourceBytes: (group) => this.#sum(group, (of) => of.sourceBytes),
    blockBytes: (group) => this.#sum(group, (of) => of.recordBytesMax),
  };
  #scheduler: Connection | null = null;
  #stage: Stage | null = null;
  #model = "";
  #tokensMin = 0;
  #isRestoring = false;
  #isRetired = false;

  constructor(
    { engine, world, shards }: Hello,
    options: EngineOptions,
    events: { onRetired(engine: Engine): void; onGone(engine: Engine): void },
  ) {
    this.id = engine;
    this.world = world;
    this.shards = shards;
    this.#options = options;
    this.#onRetired = events.onRetired;
    this.#onGone = events.onGone;
    this.#logger = options.logger.child({ engine });
    this.#pace = new EnginePace(options.isAlways);
    this.#restorer = new Restorer({
      ...options,
      engine,
      shards,
      logger: this.#logger,
      send: (message) => this.#scheduler?.send(message),
    });
  }

  /** Throws ENGINE_REFUSED when the place is taken or the hello does not fit the others. */
  addScheduler(connection: Connection, hello: Hello): void {
    this.#checkHello(hello);
    if (this.#scheduler !== null) throw this.#taken("its scheduler");
    this.#scheduler = connection;
    this.#connections.add(connection);
  }

  addWorker(connection: Connection, hello: Hello): Seat {
    this.#checkHello(hello);
    const { rank } = hello;
    if (this.#seats.has(rank)) throw this.#taken(`its worker of rank ${rank}`);
    const { saver, counters } = this.#options;
    const shard = Math.floor(rank / (this.world / this.shards));
    const shardCount = this.shards;
    const seat = new Seat({ connection, rank, shard, shardCount, saver, counters });
    this.#seats.set(rank, seat);
    this.#connections.add(connection);
    return seat;
  }

  /** After the welcome: tells a scheduler that came last what the others know already. */
  greet(connection: Connection): void {
    if (connection === this.#scheduler && this.#isRestoring) this.#sendRestore();
  }

  onSchedulerMessage(message: SchedulerMessage): void {
    if (this.#isRetired) return;
    if (message.t === "prefetch") {
      this.#checkGroups(message.groups);
      this.#restorer.prefetch(message);
    } else if (message.t === "release") {
      this.#restorer.release(message);
    } else {
      this.#restorer.namespace = message.namespace;
      this.#model = message.model;
      this.#options.saver.nameModel(message.namespace, message.model);
      const namespace = message.namespace.toString("hex").slice(0, 16);
      this.#logger.info({ namespace, model: message.model }, "engine named its namespace");
    }
  }

  onWorkerMessage(seat: Seat, message: WorkerMessage): void {
    switch (message.t) {
      case "register":
        if (!this.#isRetired) this.#register(seat, message);
        break;
      case "mapped":
        this.#onMapped(seat, message.arena);
        break;
      case "save":
        seat.save(message, this.#restorer.namespace);
        break;
      case "return":
        seat.giveBack(message.arena, message.slots);
        break;
      default:
        message satisfies never;
    }
  }

  /** What the engine measured of its own steps. */
  learn(steps: readonly Step[]): void {
    if (steps.length === 0) return;
    const tokensMin = this.#stage?.pacer.learn(steps) ?? 0;
    if (tokensMin === this.#tokensMin) return;
    this.#tokensMin = tokensMin;
    this.#scheduler?.send({ t: "pace", tokens_min: tokensMin });
  }

  onEnd(connection: Connection): void {
    this.#connections.delete(connection);
    this.retire();
    if (this.#connections.size === 0) void this.#leave();
  }

  /** Stops everything that writes slots, and closes the connections; what they have sent already is still read. */
  retire(): void {
    if (this.#isRetired) return;
    this.#isRetired = true;
    this.#onRetired(this);
    clearInterval(this.#stage?.poll);
    this.#restorer.close();
    this.#stage?.fetcher.close();
    for (const seat of this.#seats.values()) seat.stop();
    for (const connection of this.#connections) connection.close();
  }

  /** As the shelf's `dropIdle`. */
  forget(recordClass: RecordClass): void {
    this.#stage?.shelf.dropIdle(recordClass);
  }

  status(): EngineStatus {
    const stage = this.#stage;
    return {
      id: this.id,
      model: this.#model,
      namespace: this.#restorer.namespace?.toString("hex").slice(0, 16) ?? null,
      world: this.world,
      workers: this.#seats.size,
      hasScheduler: this.#scheduler !== null,
      isRestoring: this.#isRestoring,
      plans: this.#restorer.planCount,
      retainedBlocks: stage?.shelf.retained ?? 0,
      fetches: stage?.fetcher.inFlight ?? 0,
      forecast: stage?.pacer.forecast() ?? [],
      arena: stage === null ? null : arenaStatusOf(stage.arena),
    };
  }

  #checkHello({ world, shards }: Hello): void {
    if (world === this.world && shards === this.shards) return;
    throw new TierkvError("ENGINE_REFUSED", {
      engine: this.id,
      reason: `world = ${world}, shards = ${shards}, but another connection of it said ${this.world}, ${this.shards}`,
      fix: "give every engine an engine_id of its own",
    });
  }

  #taken(what: string): TierkvError {
    return new TierkvError("ENGINE_REFUSED", {
      engine: this.id,
      reason: `${what} is connected already`,
      fix: "give every engine an engine_id of its own",
    });
  }

  /** A prefetch may only name groups that the workers registered; before that it is answered without blocks. */
  #checkGroups(groups: readonly { group: number; class: string }[]): void {
    if (this.#stage === null) return;
    const [seat] = this.#seats.values();
    for (const { group, class: recordClass } of groups) {
      const known = seat?.groups?.get(group)?.spec.class ?? "not registered";
      if (known === recordClass) continue;
      throw new TierkvError("BAD_FRAME", {
        peer: `engine ${this.id}`,
        reason: `prefetch of group ${group} (${recordClass}), which is ${known}`,
      });
    }
  }

  #register(seat: Seat, message: Register): void {
    const { kvDim } = this.#options;
    if (seat.groups !== null) throw this.#taken(`rank ${seat.rank} has registered and`);
    const groups = registerGroups(message.groups, { engine: this.id, kvDim });
    seat.groups = groups;
    this.#model = message.model;
    const seats = [...this.#seats.values()];
    for (const other of seats) {
      const difference = other.groups === null ? null : groupsDiffer(groups, other.groups);
      if (difference === null) continue;
      throw new TierkvError("ENGINE_REFUSED", {
        engine: this.id,
        reason: difference,
        fix: "the engine runs on without tierKV; report its model and parallelism",
      });
    }
    if (seats.length === this.world && seats.every((other) => other.groups !== null)) {
      this.#openStage(seats, message.maxModelLen);
    }
  }

  /** All ranks have registered: makes the arena and offers it to them. */
  #openStage(seats: readonly Seat[], maxModelLen: number): void {
    const { arenaBytesMax, arenaDir, freeBytes } = this.#options;
    const ranks = seats.map(({ groups }) =>
      [...(groups ?? NO_GROUPS).values()].map(({ slotBytes, spec: { tokens } }) => ({
        bytes: slotBytes,
        tokens,
      })),
    );
    const plan = planArena({
      engine: this.id,
      ranks,
      maxModelLen,
      bytesMax: arenaBytesMax,
      freeBytes: freeBytes(),
    });
    const arena = new Arena({
      slotBytes: plan.slotBytes,
      slotCount: plan.slotCount,
      dir: arenaDir,
    });
    const stage = this.#makeStage(arena, plan.saveSlots);
    this.#stage = stage;
    const { bytes, path, slotBytes, slotCount } = arena;
    this.#logger.info({ bytes, slotBytes, slotCount, saveSlots: plan.saveSlots }, "arena made");
    for (const seat of seats) {
      seat.seatAt(arena, stage.wireId, plan.saveSlots, () =>
        stage.pacer.isWorthSaving(maxModelLen),
      );
      seat.connection.send({
        t: "arena",
        arena: stage.wireId,
        path,
        bytes,
        slot_bytes: slotBytes,
        slot_count: slotCount,
      });
    }
  }

  #makeStage(arena: Arena, saveSlots: number): Stage {
    const { world, shards } = this;
    const shelf = new Shelf({
      arena,
      shards,
      saveSlots: saveSlots * world,
      onUnwanted: (block) => fetcher.dropUnwanted(block),
      onRoom: () => this.#restorer.onRoom(),
    });
    const fetcher = new Fetcher({
      ...this.#options,
      logger: this.#logger,
      shelf,
      arena: arena.id,
      shards,
      pace: this.#pace,
      callMs: this.#options.waitMs * 2,
      geometryOf: (group, shard) => this.#groupAt(group, shard).geometry,
      blockBytes: this.#sizes.blockBytes,
    });
    const pacer = new Pacer({
      pace: this.#pace,
      links: this.#options.links,
      shelf,
      shards,
      groups: () => [...(this.#seats.get(0)?.groups?.keys() ?? [])],
      ...this.#sizes,
      pendingBytes: (recordClass) => fetcher.pendingBytes(recordClass),
    });
    const poll = setInterval(() => this.#onProgress(), ARENA_POLL_MS);
    // Never 0, and never an id that an earlier sidecar gave to an arena which some worker still has mapped.
    const wireId = Number.parseInt(randomId(4), 16) || 1;
    return { arena, wireId, shelf, fetcher, pacer, poll };
  }

  /** The group as the first rank that holds this shard describes it. */
  #groupAt(group: number, shard: number): ReturnType<Seat["group"]> {
    const rank = shard * (this.world / this.shards);
    const seat = this.#seats.get(rank);
    if (seat === undefined) throw new TierkvError("INTERNAL", { reason: `no rank ${rank}` });
    return seat.group(group);
  }

  #sum(group: number, bytesOf: (of: ReturnType<Seat["group"]>) => number): number {
    let total = 0;
    for (let shard = 0; shard < this.shards; shard += 1) {
      total += bytesOf(this.#groupAt(group, shard));
    }
    return total;
  }

  #onMapped(seat: Seat, wireId: number): void {
    if (this.#isRetired || wireId !== this.#stage?.wireId) return;
    seat.isMapped = true;
    this.#onProgress();
  }

  /** The arena is a bit further, or one rank more has mapped it. */
  #onProgress(): void {
    const stage = this.#stage;
    if (stage === null) return;
    const { touchedSlots, slotCount, failed } = stage.arena.status();
    stage.shelf.setTouched(touchedSlots);
    for (const seat of this.#seats.values()) seat.topUp();
    const enough = Math.min(RESTORE_SLOTS_MIN, stage.shelf.capacityInTime);
    const areMapped = [...this.#seats.values()].every((seat) => seat.isMapped);
    if (!this.#isRestoring && areMapped && stage.shelf.capacity >= enough) {
      this.#openRestores(stage);
    }
    if (touchedSlots < slotCount && failed === null) return;
    clearInterval(stage.poll);
    if (failed !== null) {
      this.#logger.error({ reason: failed, touchedSlots, slotCount }, "arena stays smaller");
    }
  }

  #openRestores({ shelf, fetcher, pacer }: Stage): void {
    this.#isRestoring = true;
    this.#restorer.open({ shelf, fetcher, pacer, ...this.#sizes });
    this.#sendRestore();
  }

  #sendRestore(): void {
    this.#scheduler?.send({ t: "restore", arena: this.#stage?.wireId ?? 0, on: true });
  }

  /** The last connection has ended: what was saved is still encoded, then the arena goes. */
  async #leave(): Promise<void> {
    await Promise.all([...this.#seats.values()].map((seat) => seat.leave()));
    this.#stage?.arena.close();
    this.#onGone(this);
  }
}

const NO_GROUPS: Groups = new Map();
