// Owns the traffic under which faults are injected: an engine that saves and restores without end, and a ledger of what every byte must be.
import type { Frame } from "../../../src/sidecar/frames.ts";
import { FakeEngine, hashesOf, makeBlocks, makeGroup } from "../../support/shim-client.ts";
import type { Block, EngineShape } from "../../support/shim-client.ts";
import { until } from "../../support/vaults.ts";
import { Dice } from "./random.ts";

export interface LoadShape {
  seed: number;
  engine?: string;
  /** Chains of blocks that exist; more than an arena holds, so that most restores come from the vault. */
  chains?: number;
  /** Blocks per chain. */
  length?: number;
}

/** Small blocks: what counts is how many there are. */
export const BLOCK_GROUP: Readonly<Record<string, number | string>> = makeGroup({
  layers: 1,
  heads: 1,
  dim: 16,
});
/** tokens * dim * (K and V) * 2 bytes. */
export const BLOCK_PAGE_BYTES: number = 16 * 16 * 2 * 2;

/** What has been asked, given and found wrong: kept away from everything that is tested. */
export interface Ledger {
  /** Plans that came to an end, and blocks that they asked for. */
  plans: number;
  asked: number;
  /** Plans that brought all they asked for. */
  whole: number;
  /** Blocks that were said to be placed, each compared byte for byte; and those that differed. */
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
  readonly engine: FakeEngine;
  readonly #chains: readonly Block[][];
  readonly #dice: Dice;
  #turn: Promise<void> = Promise.resolve();
  #isOn = false;

  private constructor(engine: FakeEngine, chains: readonly Block[][], seed: number) {
    this.engine = engine;
    this.#chains = chains;
    this.#dice = new Dice(seed);
  }

  /** An engine that is ready; nothing is saved yet. */
  static async open(socketPath: string, shape: LoadShape): Promise<Load> {
    const { engine = "engine-1", chains = 64, length = 24, seed } = shape;
    const blocks = Array.from({ length: chains }, (_, number) =>
      makeBlocks(`load ${number}`, length, BLOCK_PAGE_BYTES),
    );
    const given: EngineShape = {
      engine,
      groups: [BLOCK_GROUP],
      maxModelLen: Math.max(512, length * 16),
    };
    return new Load(await FakeEngine.start(socketPath, given), blocks, seed);
  }

  start(): void {
    this.#isOn = true;
    this.#turn = this.#run();
  }

  /** Ends after the plan under way. */
  async stop(): Promise<void> {
    this.#isOn = false;
    await this.#turn;
  }

  /** Waits until `count` plans more have brought all they asked for: a run with less traffic is void. */
  async wholeMore(count: number, when: string): Promise<void> {
    const least = this.ledger.whole + count;
    await until(() => this.ledger.whole >= least, `${count} whole restores ${when} (else: void)`);
  }

  /** Waits until `count` plans more have ended, whatever they brought: nothing hangs. */
  async plansMore(count: number): Promise<void> {
    const least = this.ledger.plans + count;
    await until(() => this.ledger.plans >= least, `the end of ${count} plans under the fault`);
  }

  async #run(): Promise<void> {
    while (this.#isOn && !this.engine.scheduler.isClosed) {
      const blocks = this.#chains[this.#dice.below(this.#chains.length)]!;
      const found = await this.#restore(blocks);
      // As an engine does: what was not found is computed, and offered.
      if (found < blocks.length) this.#save(blocks.slice(found));
      this.#forget();
    }
  }

  async #restore(blocks: readonly Block[]): Promise<number> {
    const { engine, ledger } = this;
    const plan = engine.prefetch(hashesOf(blocks));
    const isOver = (frame: Frame): boolean => frame["t"] === "done" && frame["plan"] === plan;
    await seen(engine, isOver);
    const { placed, reason } = engine.view(plan);
    const slots = placed.get(0) ?? [];
    for (const index of slots.keys()) {
      if (!engine.holds({ placed } as never, index, blocks[index]!)) ledger.wrong += 1;
    }
    if (!engine.scheduler.isClosed) engine.release(plan);
    ledger.plans += 1;
    ledger.asked += blocks.length;
    ledger.placed += slots.length;
    const why = reason ?? "gone";
    ledger.reasons[why] = (ledger.reasons[why] ?? 0) + 1;
    if (slots.length === blocks.length) ledger.whole += 1;
    return slots.length;
  }

  /** What there are no slots for is dropped, as an engine drops it. */
  #save(blocks: readonly Block[]): void {
    const [worker] = this.engine.workers;
    const count = Math.min(worker!.credits.length, blocks.length);
    if (count > 0) this.engine.save(blocks.slice(0, count));
    this.ledger.saved += count;
  }

  /** Frames of plans that are over; without this every look at one reads all there ever were. */
  #forget(): void {
    this.engine.scheduler.frames.length = 0;
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
