// Owns one restore plan: its blocks per group, how far they are placed without a gap, and why it ended.
import type { Namespace, RecordClass } from "../../base/block.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { Block, BlockUser, RunOffer } from "../slots/block.ts";
import { slotBytes } from "../socket/frames.ts";
import type { DoneReason } from "../socket/messages.ts";
import type { Case } from "../trace/decisions.ts";

/** A run of held blocks of one group: the group's hash number `first` and the ones after it. */
export interface GroupRange {
  group: number;
  recordClass: RecordClass;
  first: number;
  count: number;
  /** Returns the cache key of the block at an index of the range. */
  keyOf(index: number): string;
  /** 32 bytes per block. */
  hashes: Buffer;
  /** Hash of the block before the first; zeros where there is none. */
  parent: Buffer;
  /** Tenant that the blocks are stored for. */
  tenant: number;
  /** Where to fetch the blocks, by index in the range, without a gap. */
  offers: readonly RunOffer[];
  /** Why the range is shorter than asked; null when it is not. */
  cut: DoneReason | null;
}

export interface Placed {
  group: number;
  first: number;
  slots: Buffer;
  blocks: readonly Block[];
}

/** looking: waits for vaults' answers · queued: waits for room · fetching: blocks are on their way · done: the scheduler was told. */
export type PlanState = "looking" | "queued" | "fetching" | "done";

/** How long the engine waits for a plan, and the reason reported when that time is up. */
export interface Budget {
  ms: number;
  reason: DoneReason;
}

/** Prompt tokens: end of the engine's own cache, and end of the known hashes. */
export interface Span {
  start: number;
  end: number;
}

export interface PlanOptions {
  req: string;
  number: number;
  openKeys: number;
  namespace: Namespace | null;
  span: Span;
  account: Case;
  budget: Budget;
  receipt: string;
  isHandedOver: boolean;
  ahead: number;
}

export class Plan {
  readonly req: string;
  readonly number: number;
  /** Keys that the plan asked for, over all ranks; 0 once it has ended. */
  openKeys: number;
  state: PlanState = "looking";
  ranges: readonly GroupRange[] = [];
  /** Namespace of the look-up; the engine's own may change meanwhile. */
  readonly namespace: Namespace | null;
  readonly runs: Run[] = [];
  /** Runs of a hand-off, fetched before all of it is held. */
  readonly early: Run[] = [];
  /** Other uses of blocks that last until the plan's runs begin. */
  readonly kept: { leaveAll(): void }[] = [];
  /** True once the scheduler released the plan or its connection ended. */
  isReleased = false;
  reclaimAskedMs: number | null = null;
  /** Prompt tokens up to which the plan restores. */
  tokens = 0;
  /** Place of its blocks among other plans' blocks: see FetchQueue. */
  turn = 0;
  /** Longest silence of a vault that its gain is worth, in milliseconds; 0: not known. */
  patienceMs = 0;
  /** True where blocks are held but computing is faster. */
  isRefused = false;
  readonly span: Span;
  readonly case: Case;
  /** True once the engine waits for the plan, which must then end within its budget. */
  isAsked = false;
  budget: Budget;
  /** True when another engine computed the blocks for this one: restored even where computing is faster. */
  readonly isHandedOver: boolean;
  /** Requests that came earlier and that the engine had not begun. */
  readonly ahead: number;
  /** Name of its receipt; empty when it gets none. */
  readonly receipt: string;
  deadline: NodeJS.Timeout | undefined;
  /** True when the look-up was skipped, because this sidecar has stored the blocks. */
  isKnown = false;
  /** True where the engine may load blocks while others come. */
  isLoadable = false;
  /** True once the engine was told that it may. */
  isLoading = false;
  /** Brings the next blocks of a plan with a depth; null before it begins. */
  feed: { fill(): void } | null = null;
  /** Most blocks in use at a time, where the arena cannot hold all of them; null: all. */
  depth: number | null = null;

  constructor(options: PlanOptions) {
    const { req, number, openKeys, namespace, span, account, budget, isHandedOver } = options;
    this.receipt = options.receipt;
    this.req = req;
    this.ahead = options.ahead;
    this.isHandedOver = isHandedOver;
    this.number = number;
    this.openKeys = openKeys;
    this.namespace = namespace;
    this.span = span;
    this.case = account;
    this.budget = budget;
  }

  get isOver(): boolean {
    return this.isReleased || this.state === "done";
  }

  /** Leaves the blocks kept so far: the runs use them now, or other plans need the room. */
  leaveEarly(): void {
    for (const held of [...this.early.splice(0), ...this.kept.splice(0)]) held.leaveAll();
  }

  /** Windows in which its blocks pass through the arena; 1: it holds them all. */
  get windows(): number {
    const blocks = this.ranges.reduce((sum, { count }) => sum + count, 0);
    return this.depth === null ? 1 : Math.max(1, Math.ceil(blocks / this.depth));
  }

  get blockCount(): number {
    return this.runs.reduce((sum, run) => sum + run.length, 0);
  }
}

/** Marks blocks as shared, because a plan reports them now. Returns the blocks that no earlier plan reported. */
export function share(blocks: readonly Block[]): Block[] {
  const fresh = blocks.filter(({ isShared }) => !isShared);
  for (const block of fresh) block.isShared = true;
  return fresh;
}

/**
 * The blocks of one range, each in use until the engine has loaded it, the plan is released, or the run is cut before it. A run of a
 * plan with a depth has only some of its blocks at a time; the others are still to be added.
 */
export class Run implements BlockUser {
  readonly group: number;
  readonly recordClass: RecordClass;
  readonly first: number;
  readonly trace: Buffer | null;
  readonly patienceMs: number;
  readonly #cache: BlockCache;
  readonly #onChange: () => void;
  /** Offers of the whole range. */
  readonly #offers: readonly RunOffer[];
  /** Blocks in use, from index `#loaded` of the range on. */
  #blocks: Block[] = [];
  /** Blocks before this index are in the engine, and used no more. */
  #loaded = 0;
  /** Blocks before this index are placed and reported to the scheduler. */
  #cursor = 0;
  /** Blocks of the range that are still to be added. */
  #left = 0;
  cut: DoneReason | null;

  constructor(
    range: GroupRange,
    cache: BlockCache,
    onChange: () => void,
    plan: Pick<Plan, "case" | "patienceMs">,
  ) {
    this.trace = plan.case.trace?.fetch ?? null;
    this.patienceMs = plan.patienceMs;
    this.group = range.group;
    this.recordClass = range.recordClass;
    this.first = range.first;
    this.cut = range.cut;
    this.#offers = range.offers;
    this.#cache = cache;
    this.#onChange = onChange;
  }

  /** Blocks of the range that it has had, has, or will have. */
  get length(): number {
    return this.#loaded + this.#blocks.length + this.#left;
  }

  /** Blocks that have a place in the arena, or are to get one. */
  get inUse(): number {
    return this.#blocks.length;
  }

  get blocks(): readonly Block[] {
    return this.#blocks;
  }

  /** Blocks reported to the scheduler. */
  get placed(): number {
    return this.#cursor;
  }

  get isComplete(): boolean {
    return this.#cursor === this.length;
  }

  /** Announces so many blocks that `add` brings later. */
  expect(count: number): void {
    this.#left = count;
  }

  add(block: Block): void {
    this.#blocks.push(block);
    if (this.#left > 0) this.#left -= 1;
  }

  onBlock(): void {
    this.#onChange();
  }

  /** Adds `each` bytes per unreported block to the sums of the vaults that send it. */
  addLeft(sums: Float64Array, each: number): void {
    for (let at = this.#cursor - this.#loaded; at < this.#blocks.length; at += 1) {
      const owner = this.#blocks[at]?.owner ?? 0;
      sums[owner] = (sums[owner] ?? 0) + each;
    }
    if (this.#left === 0) return;
    const from = this.length - this.#left;
    for (const { first, end, vault } of this.#offers) {
      sums[vault] = (sums[vault] ?? 0) + Math.max(0, end - Math.max(first, from)) * each;
    }
  }

  /** Returns the blocks placed behind the cursor without a gap, or null. Ends the run at a block that will not come. */
  advance(): Placed | null {
    const from = this.#cursor;
    while (isFree(this.#blocks[this.#cursor - this.#loaded])) this.#cursor += 1;
    const blocks = this.#blocks.slice(from - this.#loaded, this.#cursor - this.#loaded);
    const next = this.#blocks[this.#cursor - this.#loaded];
    if (next?.isFlushed === true) this.end("flushed");
    else if (next?.state === "gone") this.end(next.failure ?? "end_of_hit");
    if (blocks.length === 0) return null;
    const slots = slotsOf(blocks, this.#cache.shards);
    return { group: this.group, first: this.first + from, slots: slotBytes(slots), blocks };
  }

  /** Gives up the blocks behind the cursor. */
  end(reason: DoneReason): void {
    if (!this.isComplete) this.cut = reason;
    this.#left = 0;
    this.#leaveFrom(this.#cursor - this.#loaded);
  }

  /**
   * Leaves the blocks before index `count` of the range, because the engine has them; `isDropped`: their slots return at once. Ignores
   * blocks that were not reported.
   */
  passTo(count: number, isDropped: boolean): void {
    const passed = this.#blocks.splice(0, Math.min(count, this.#cursor) - this.#loaded);
    this.#loaded += passed.length;
    for (const block of passed) {
      this.#cache.leave(block, this);
      if (isDropped) this.#cache.drop(block);
    }
  }

  leaveAll(): void {
    this.#left = 0;
    this.#leaveFrom(0);
    this.#cursor = 0;
    this.#loaded = 0;
  }

  /** Leaves the tail first, so that it becomes the oldest idle block: a prefix is still of use without its tail. */
  #leaveFrom(count: number): void {
    while (this.#blocks.length > count) {
      const block = this.#blocks.pop();
      if (block !== undefined) this.#cache.leave(block, this);
    }
  }
}

/** True for a block whose bytes are in its slots and were not flushed. */
function isFree(block: Block | undefined): boolean {
  return block?.state === "placed" && !block.isFlushed;
}

/** Returns slot numbers block by block, with all shards of a block together. */
function slotsOf(blocks: readonly Block[], shards: number): Uint32Array {
  const slots = new Uint32Array(blocks.length * shards);
  let at = 0;
  for (const { leases, leaseAt } of blocks) {
    for (let shard = 0; shard < shards; shard += 1) {
      slots[at] = leases[(leaseAt + shard) * 2] ?? 0;
      at += 1;
    }
  }
  return slots;
}

const WORST_FIRST: readonly DoneReason[] = [
  "flushed",
  "bad_record",
  "vault_down",
  "no_slot",
  "overload",
  "slower",
  "deadline",
  "end_of_hit",
];

/** Returns the gravest of the reasons for which runs were cut. */
export function doneReason(cuts: readonly (DoneReason | null)[]): DoneReason {
  return WORST_FIRST.find((reason) => cuts.includes(reason)) ?? "complete";
}
