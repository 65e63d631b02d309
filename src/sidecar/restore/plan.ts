// Owns one restore plan: its blocks group by group, what was placed of them in order, and why it ended.
import type { Namespace, RecordClass } from "../../block.ts";
import { REBUILT } from "../../pool/placement.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { Block, BlockUser } from "../slots/block.ts";
import { slotBytes } from "../socket/frames.ts";
import type { DoneReason } from "../socket/messages.ts";
import type { Case } from "../trace/decisions.ts";

/** A run of blocks of one group that were found held: index `first` of the group's hashes and those after it. */
export interface GroupRange {
  group: number;
  recordClass: RecordClass;
  first: number;
  keys: readonly string[];
  /** 32 bytes per key. */
  hashes: Buffer;
  /** Hash of the block before the first; zeros where there is none. */
  parent: Buffer;
  /** On whose account the blocks are stored. */
  tenant: number;
  /** By block: which vault of the class it lies on; beyond the end: 0. */
  owners: Uint8Array;
  /** By block: which other vault has it, or is to have it. */
  seconds: Uint8Array;
  /** By block: records of it that only an archive has; beyond the end: 0. */
  far: Uint8Array;
  /** Of all blocks of the group that were asked for, from the prompt's first on. */
  whole?: Buffer;
  /** Why it is shorter than what was asked; null when it is not. */
  cut: DoneReason | null;
}

/** How many times a rebuilt block's bytes a vault sends, on average. */
export type RebuildShare = (vault: number) => number;

/** Adds what a block costs to the sums of those who send it. */
export function addBytes(
  sums: Float64Array,
  owner: number,
  bytes: number,
  shareOf: RebuildShare,
): void {
  if (owner === REBUILT) sums.forEach((sum, at) => (sums[at] = sum + bytes * shareOf(at)));
  else sums[owner] = (sums[owner] ?? 0) + bytes;
}

export interface Placed {
  group: number;
  first: number;
  slots: Buffer;
  blocks: readonly Block[];
}

/** looking: vaults are asked · queued: waits for room · fetching: blocks are on their way · done: the scheduler was told. */
export type PlanState = "looking" | "queued" | "fetching" | "done";

/** How long the engine may wait for a plan, and what ends it then. */
export interface Budget {
  ms: number;
  reason: DoneReason;
}

/** Prompt tokens: from where the engine computes, and up to where hashes are known. */
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
  /** Keys it asked for, on all ranks, for as long as it is open. */
  openKeys: number;
  state: PlanState = "looking";
  ranges: readonly GroupRange[] = [];
  /** The one its keys were looked up in; the engine's may change meanwhile. */
  readonly namespace: Namespace | null;
  readonly runs: Run[] = [];
  /** What is fetched of a hand-off before all of it is held. */
  readonly early: Run[] = [];
  /** What else is kept for it until its runs begin. */
  readonly kept: { leaveAll(): void }[] = [];
  /** The scheduler gave it up, or its connection ended. */
  isReleased = false;
  reclaimAskedMs: number | null = null;
  /** Prompt tokens that it restores up to. */
  tokens = 0;
  /** When its blocks are fetched, among those of others: see FetchQueue. */
  turn = 0;
  /** Something is held, and computing it is faster. */
  isRefused = false;
  readonly span: Span;
  readonly case: Case;
  /** The engine waits for it: from then on it must end within its budget. */
  isAsked = false;
  budget: Budget;
  /** Another engine computed it for this one: it is restored, whatever computing would take. */
  readonly isHandedOver: boolean;
  /** Requests that came before it and that its engine had not begun. */
  readonly ahead: number;
  /** What a receipt of it is called; empty: it gets none. */
  readonly receipt: string;
  deadline: NodeJS.Timeout | undefined;
  /** It was not looked up, because this sidecar has stored it. */
  isKnown = false;

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

  /** It has its own use of them, or they are in the way. */
  leaveEarly(): void {
    for (const held of [...this.early.splice(0), ...this.kept.splice(0)]) held.leaveAll();
  }

  get blockCount(): number {
    return this.runs.reduce((sum, run) => sum + run.length, 0);
  }
}

/** A plan is told of them: later ones share them. Those that no plan was told of before. */
export function share(blocks: readonly Block[]): Block[] {
  const fresh = blocks.filter(({ isShared }) => !isShared);
  for (const block of fresh) block.isShared = true;
  return fresh;
}

/** The blocks of one range, each used by this plan until the plan is released or the run is cut before them. */
export class Run implements BlockUser {
  readonly group: number;
  readonly recordClass: RecordClass;
  readonly first: number;
  readonly trace: Buffer | null;
  readonly #cache: BlockCache;
  readonly #onChange: () => void;
  #blocks: Block[] = [];
  /** Blocks before it are placed, and the scheduler knows. */
  #cursor = 0;
  cut: DoneReason | null;

  constructor(
    range: GroupRange,
    cache: BlockCache,
    onChange: () => void,
    trace: Buffer | null = null,
  ) {
    this.trace = trace;
    this.group = range.group;
    this.recordClass = range.recordClass;
    this.first = range.first;
    this.cut = range.cut;
    this.#cache = cache;
    this.#onChange = onChange;
  }

  get length(): number {
    return this.#blocks.length;
  }

  get blocks(): readonly Block[] {
    return this.#blocks;
  }

  /** Blocks of which the scheduler was told. */
  get placed(): number {
    return this.#cursor;
  }

  get isComplete(): boolean {
    return this.#cursor === this.#blocks.length;
  }

  add(block: Block): void {
    this.#blocks.push(block);
  }

  onBlock(): void {
    this.#onChange();
  }

  /** Adds `each` for every block that the scheduler was not told of to its vault's sum. */
  addLeft(sums: Float64Array, each: number, shareOf: RebuildShare): void {
    if (sums.length === 1) sums[0] = (sums[0] ?? 0) + (this.length - this.placed) * each;
    else {
      for (let at = this.#cursor; at < this.#blocks.length; at += 1) {
        addBytes(sums, this.#blocks[at]?.owner ?? 0, each, shareOf);
      }
    }
  }

  /** What was placed behind the cursor without a gap, or null. A block that will not come ends the run there. */
  advance(): Placed | null {
    const from = this.#cursor;
    while (isFree(this.#blocks[this.#cursor])) this.#cursor += 1;
    const blocks = this.#blocks.slice(from, this.#cursor);
    const next = this.#blocks[this.#cursor];
    if (next?.isFlushed === true) this.end("flushed");
    else if (next?.state === "gone") this.end(next.failure ?? "end_of_hit");
    if (blocks.length === 0) return null;
    const slots = slotsOf(blocks, this.#cache.shards);
    return { group: this.group, first: this.first + from, slots: slotBytes(slots), blocks };
  }

  /** Gives up what is not placed yet. */
  end(reason: DoneReason): void {
    if (!this.isComplete) this.cut = reason;
    this.#leaveFrom(this.#cursor);
  }

  leaveAll(): void {
    this.#leaveFrom(0);
    this.#cursor = 0;
  }

  /** The tail first: it becomes the oldest idle block, and a prefix without its tail is still of use. */
  #leaveFrom(count: number): void {
    while (this.#blocks.length > count) {
      const block = this.#blocks.pop();
      if (block !== undefined) this.#cache.leave(block, this);
    }
  }
}

/** Its bytes are there, and may be used. */
function isFree(block: Block | undefined): boolean {
  return block?.state === "placed" && !block.isFlushed;
}

/** Slot numbers, shard after shard, block after block. */
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

/** The one reason that says most about runs that were cut for different ones. */
export function doneReason(cuts: readonly (DoneReason | null)[]): DoneReason {
  return WORST_FIRST.find((reason) => cuts.includes(reason)) ?? "complete";
}
