// Owns the traffic under which faults are injected: an engine that saves and restores endlessly, and a ledger of all bytes.
import type { Frame } from "../../../src/sidecar/socket/frames.ts";
import { FakeEngine, hashesOf, makeBlocks, makeGroup } from "../../support/shim-client.ts";
import type { Block, EngineShape } from "../../support/shim-client.ts";
import { until } from "../../support/vaults.ts";
import { Dice } from "./random.ts";

export interface LoadShape {
  seed: number;
  engine?: string;
  /** Existing chains of blocks, more than an arena holds, so that most restores come from the vault. */
  chains?: number;
  /** Blocks per chain. */
  length?: number;
  /** One plan in so many asks for new blocks, so that there is always something to save; 0: none. */
  freshEvery?: number;
  grain?: Grain;
  /** Ranks, each with its own shard. */
  world?: number;
}

/** Size of blocks. */
export interface Grain {
  group: Readonly<Record<string, number | string>>;
  pageBytes: number;
}

/** tokens * layers * heads * dim * (K and V) * 2 bytes. */
const grain = (layers: number, heads: number, dim: number): Grain => ({
  group: makeGroup({ layers, heads, dim }),
  pageBytes: 16 * layers * heads * dim * 2 * 2,
});

/** Small blocks, for large numbers of them. */
export const FINE: Grain = grain(1, 1, 16);
/** Blocks for the smallest configurable arena. */
export const COARSE: Grain = grain(2, 2, 64);
export const { group: BLOCK_GROUP, pageBytes: BLOCK_PAGE_BYTES } = FINE;

/** Counts of requests, results and errors, kept apart from the tested processes. */
export interface Ledger {
  /** Ended plans, and the blocks that they asked for. */
  plans: number;
  asked: number;
  /** Plans that brought all their blocks. */
  whole: number;
  /** Blocks placed, each compared byte for byte, and the different ones. */
  placed: number;
  wrong: number;
  saved: number;
  /** Plans by their `done` reason. */
  reasons: Record<string, number>;
}

export class Load {
  readonly ledger: Ledger = {
    plans: 0,
    asked: 0,
    whole: 0,
    placed: 0,
    wrong: 0,
    saved: 0,
    reasons: {},
  };
  engine: FakeEngine;
  readonly #shape: EngineShape;
  readonly #given: Required<LoadShape>;
  #fresh = 0;
  readonly #chains: readonly Block[][];
  readonly #dice: Dice;
  #turn: Promise<void> = Promise.resolve();
  #isOn = false;

  private constructor(engine: FakeEngine, shape: EngineShape, given: Required<LoadShape>) {
    const { chains, length, grain: grained, world, seed } = given;
    this.engine = engine;
    this.#shape = shape;
    this.#given = given;
    this.#chains = Array.from({ length: chains }, (_, number) =>
      makeBlocks(`load ${number}`, length, grained.pageBytes, world),
    );
    this.#dice = new Dice(seed);
  }

  /** Opens an engine that is ready; nothing is saved yet. */
  static async open(socketPath: string, shape: LoadShape): Promise<Load> {
    const { engine = "engine-1", chains = 64, length = 24, freshEvery = 0, seed } = shape;
    const { grain: grained = FINE, world = 1 } = shape;
    const given: EngineShape = {
      engine,
      world,
      groups: [grained.group],
      maxModelLen: Math.max(512, length * 16),
    };
    const whole = { engine, chains, length, freshEvery, seed, grain: grained, world };
    return new Load(await FakeEngine.start(socketPath, given), given, whole);
  }

  /** Continues with a restarted sidecar. */
  async again(socketPath: string): Promise<void> {
    await this.stop();
    this.engine = await FakeEngine.start(socketPath, this.#shape);
    this.start();
  }

  start(): void {
    this.#isOn = true;
    this.#turn = this.#run();
  }

  /** All existing blocks, except fresh ones. */
  get blocks(): readonly Block[] {
    return this.#chains.flat();
  }

  /** Ends after the open plan. */
  async stop(): Promise<void> {
    this.#isOn = false;
    await this.#turn;
  }

  /** Waits until `count` more plans have brought all their blocks, because a run with less traffic is void. */
  async wholeMore(count: number, when: string): Promise<void> {
    const least = this.ledger.whole + count;
    await until(() => this.ledger.whole >= least, `${count} whole restores ${when} (else: void)`);
  }

  /** Waits until `count` more plans have ended, so that nothing hangs. */
  async plansMore(count: number): Promise<void> {
    const least = this.ledger.plans + count;
    await until(() => this.ledger.plans >= least, `the end of ${count} plans under the fault`);
  }

  async #run(): Promise<void> {
    while (this.#isOn && !this.engine.scheduler.isClosed) {
      const blocks = this.#next();
      const found = await this.#restore(blocks);
      // Computes and offers missing blocks, as an engine does.
      if (found < blocks.length) this.#save(blocks.slice(found));
      this.#forget();
    }
  }

  #next(): readonly Block[] {
    const { freshEvery, length, grain: grained, world } = this.#given;
    if (freshEvery > 0 && (this.ledger.plans + 1) % freshEvery === 0) {
      this.#fresh += 1;
      return makeBlocks(`fresh ${this.#fresh}`, length, grained.pageBytes, world);
    }
    return this.#chains[this.#dice.below(this.#chains.length)]!;
  }

  async #restore(blocks: readonly Block[]): Promise<number> {
    const { engine, ledger } = this;
    const plan = engine.prefetch(hashesOf(blocks));
    const isOver = (frame: Frame): boolean => frame["t"] === "done" && frame["plan"] === plan;
    await seen(engine, isOver);
    const { placed, reason } = engine.view(plan);
    const slots = placed.get(0) ?? [];
    for (const index of slots.keys()) {
      if (index % engine.shards > 0) continue;
      const at = index / engine.shards;
      if (!engine.holds({ placed } as never, at, blocks[at]!)) ledger.wrong += 1;
    }
    if (!engine.scheduler.isClosed) engine.release(plan);
    ledger.plans += 1;
    ledger.asked += blocks.length;
    const placedBlocks = slots.length / engine.shards;
    ledger.placed += placedBlocks;
    const why = reason ?? "gone";
    ledger.reasons[why] = (ledger.reasons[why] ?? 0) + 1;
    if (placedBlocks === blocks.length) ledger.whole += 1;
    return placedBlocks;
  }

  /** Drops blocks without slots, as an engine does. */
  #save(blocks: readonly Block[]): void {
    const credits = this.engine.workers.map((worker) => worker.credits.length);
    const count = Math.min(blocks.length, ...credits);
    if (count > 0) this.engine.save(blocks.slice(0, count));
    this.ledger.saved += count;
  }

  /** Removes frames of ended plans, because searches would read all of them, and memory would grow. */
  #forget(): void {
    const { scheduler, workers } = this.engine;
    for (const { frames } of [scheduler, ...workers]) frames.length = 0;
  }
}

/** Waits for a frame without polling; also ends with the connection. */
async function seen(engine: FakeEngine, isIt: (frame: Frame) => boolean): Promise<void> {
  const { scheduler } = engine;
  if (scheduler.frames.some((frame) => isIt(frame)) || scheduler.isClosed) return;
  await new Promise<void>((resolve) => {
    const timer = setInterval(() => {
      if (scheduler.isClosed) done();
    }, 50);
    const done = (): void => {
      clearInterval(timer);
      scheduler.onFrame = (): void => {};
      resolve();
    };
    scheduler.onFrame = (frame): void => {
      if (isIt(frame)) done();
    };
  });
}
