// Owns one block in an engine's arena, or on its way there: its state, its slots and its users.
import type { Leases } from "../../arena/arena.ts";
import type { RecordClass } from "../../base/block.ts";
import type { BlockSource } from "../../client/source.ts";
import type { DoneReason } from "../socket/messages.ts";
import { Holding } from "./holding.ts";

/** Consecutive blocks of one group that one source offers alike. */
export interface RunOffer {
  /** Index of the first block, and of the one behind the last. */
  first: number;
  end: number;
  /** Index of the vault in its class. */
  readonly vault: number;
  /** Index of another vault that has the blocks, or is to have them; null: none. */
  readonly second: number | null;
  /** Records per block that only the vault's archive has. */
  readonly archived: number;
  /** Where to fetch them; null: the vault itself. */
  readonly source: BlockSource | null;
}

/** Names consecutive blocks of one group in a namespace, offered alike; a block includes all its shards. */
export interface BlockRun extends Omit<RunOffer, "first" | "end"> {
  readonly namespace: Buffer;
  readonly recordClass: RecordClass;
  readonly group: number;
  /** Block hashes, 32 bytes each; kept as long as any of the blocks. */
  readonly hashes: Buffer;
  /** Hash of the block before the first; zeros where there is none. */
  readonly parent: Buffer;
  /** Blocks of the prompt before the first. */
  readonly first: number;
  /** Tenant that the blocks are stored for; 0: none in particular. */
  readonly tenant: number;
  /** Namespace of another engine's longer blocks that these were cut from. */
  readonly cutFrom?: Buffer;
}

/** A use of a block by one plan, called when the block's state changes. */
export interface BlockUser {
  /** Context of the span that fetches it; null: no span is wanted. */
  readonly trace?: Buffer | null;
  /** Milliseconds without a byte that the plan's gain is worth; 0: not known. */
  readonly patienceMs?: number;
  onBlock(): void;
}

export const NO_LEASES: Leases = new Uint32Array(0);

/** wanted: no slots yet · fetching: slots are being filled · placed: verified and decoded · gone: will not come (`failure`). */
export type BlockState = "wanted" | "fetching" | "placed" | "gone";

/** A restore touches thousands of blocks, so every field exists from the start and nothing is allocated beside it. */
export class Block extends Holding {
  readonly key: string;
  readonly namespace: Buffer;
  readonly recordClass: RecordClass;
  readonly group: number;
  readonly run: BlockRun;
  /** Hashes of the run; the block's own is at `index`. */
  readonly hashes: Buffer;
  readonly index: number;
  state: BlockState = "wanted";
  failure: DoneReason | null = null;
  /** Pairs (slot, generation), one per shard from pair `leaseAt` on, among other blocks' pairs. Empty while wanted. */
  leases: Leases = NO_LEASES;
  leaseAt = 0;
  /** Call that fetches the block; null: none does. */
  call: { dropUnwanted(): void } | null = null;
  /** True after a flush: no new user gets the block, and its slots return once its users have left. */
  isFlushed = false;
  /** True once a plan has reported the block; later plans share it. */
  isShared = false;
  /** True while its bytes are encoded: the block keeps its slots and its place in the order of eviction. */
  isLent = false;
  /** The other vault that has the block or is to have it. */
  readonly second: Holding | null;
  /** True once the block is fetched from the other vault, because the first did not give it. */
  hasFailedOver = false;
  /** First user; most blocks have only one. */
  user: BlockUser | null = null;
  others: Set<BlockUser> | null = null;

  constructor(key: string, run: BlockRun, index: number) {
    super(run.vault);
    this.second = run.second === null ? null : new Holding(run.second);
    this.key = key;
    this.namespace = run.namespace;
    this.recordClass = run.recordClass;
    this.group = run.group;
    this.run = run;
    this.hashes = run.hashes;
    this.index = index;
  }

  /** Index in the prompt, from 0. */
  get at(): number {
    return this.run.first + this.index;
  }

  /** Index, in its class, of the vault that it is fetched from. */
  get owner(): number {
    return this.vault;
  }

  /** Source to fetch it from; null: the vault itself. */
  get source(): BlockSource | null {
    return this.hasFailedOver ? null : this.run.source;
  }

  /** True when the block is wanted and may still come from another vault. */
  get mayFailOver(): boolean {
    const isOpen = this.state === "wanted" || this.state === "fetching";
    return (
      isOpen && this.second !== null && !this.hasFailedOver && !this.isFlushed && this.user !== null
    );
  }

  /** Makes the block wanted again, from the other vault. */
  failOver(): void {
    const other = this.second?.vault ?? this.vault;
    this.second?.moveTo(this.vault);
    this.moveTo(other);
    this.hasFailedOver = true;
    this.state = "wanted";
    this.call = null;
  }

  get userCount(): number {
    return (this.user === null ? 0 : 1) + (this.others?.size ?? 0);
  }

  addUser(user: BlockUser): void {
    if (this.user === null) this.user = user;
    else if (this.user !== user) (this.others ??= new Set()).add(user);
  }

  /** Removes a user; false when it was none. */
  dropUser(user: BlockUser): boolean {
    if (this.user !== user) return this.others?.delete(user) ?? false;
    const [next = null] = this.others ?? [];
    this.user = next;
    if (next !== null) this.others?.delete(next);
    return true;
  }

  notifyUsers(): void {
    const { user, others } = this;
    if (others === null) user?.onBlock();
    // A copy, because another user becomes the first when the first leaves as it is told.
    else for (const each of [user, ...others]) each?.onBlock();
  }
}
