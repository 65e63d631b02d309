// Owns an engine's part in a restore window by window: compares each placed block, and acknowledges it as loaded.
import type { Fields } from "../../src/sidecar/socket/frames.ts";
import type { Block, FakeEngine } from "./shim-client.ts";
import { until } from "./vaults.ts";

const BLOCK_TOKENS = 16;

/** Reads the blocks of one plan as they are placed; acknowledges them once the sidecar says `load`, and while it may. */
export class Loader {
  readonly #engine: FakeEngine;
  readonly #blocks: readonly Block[];
  readonly plan: number;
  /** Blocks read so far, byte for byte as saved; and others. */
  right = 0;
  wrong = 0;
  isToldToLoad = false;
  /** Most blocks placed and not acknowledged. */
  mostInUse = 0;
  reason: string | null = null;
  /** Called before each acknowledgement with the blocks read so far. */
  beforeLoaded: (right: number) => void = () => {};
  #mayLoad = true;
  #told = 0;

  constructor(engine: FakeEngine, plan: number, blocks: readonly Block[]) {
    this.#engine = engine;
    this.plan = plan;
    this.#blocks = blocks;
    const { scheduler } = engine;
    const others = scheduler.onFrame;
    scheduler.onFrame = (frame) => {
      others(frame);
      if (frame["plan"] === plan) this.#hear(frame);
    };
  }

  /** Reads, but acknowledges nothing until `go`: the engine has no room for the request. */
  stop(): void {
    this.#mayLoad = false;
  }

  go(): void {
    this.#mayLoad = true;
    this.#acknowledge();
  }

  async done(): Promise<string> {
    await until(() => this.reason !== null, `the end of plan ${this.plan}`);
    return this.reason!;
  }

  release(): void {
    const loaded = { tokens: this.right * BLOCK_TOKENS, from: 0, load_us: 1, begun: 1 };
    this.#engine.release(this.plan, this.right === 0 ? {} : loaded);
  }

  #hear(frame: Fields): void {
    if (frame["t"] === "placed") this.#read(frame);
    if (frame["t"] === "load") this.isToldToLoad = true;
    if (frame["t"] === "done") this.reason = frame["reason"] as string;
    else this.#acknowledge();
  }

  #read(frame: Fields): void {
    const slots = new Map([[0, slotsOf(frame)]]);
    const view = { plan: this.plan, held: null, placed: slots, reason: null, why: null };
    const count = slots.get(0)!.length / this.#engine.shards;
    for (let index = 0; index < count; index += 1) {
      const block = this.#blocks[(frame["first"] as number) + index]!;
      if (this.#engine.holds(view, index, block)) this.right += 1;
      else this.wrong += 1;
    }
    this.mostInUse = Math.max(this.mostInUse, this.right + this.wrong - this.#told);
  }

  #acknowledge(): void {
    const count = this.right + this.wrong;
    if (!this.isToldToLoad || !this.#mayLoad || this.#told === count) return;
    this.beforeLoaded(this.right);
    this.#told = count;
    const tokens = count * BLOCK_TOKENS;
    this.#engine.scheduler.send({ t: "loaded", req: "request", plan: this.plan, tokens });
  }
}

function slotsOf(frame: Fields): number[] {
  const bytes = frame["slots"] as Uint8Array;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Array.from({ length: bytes.length / 4 }, (_, at) => view.getUint32(at * 4, true));
}
