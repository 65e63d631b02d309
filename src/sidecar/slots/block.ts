// Owns one block in an engine's arena, or on its way: its state, its slots and who uses it.
import type { Leases } from "../../arena/arena.ts";
import type { RecordClass } from "../../block.ts";
import { NO_VAULT } from "../../pool/placement.ts";
import type { DoneReason } from "../socket/messages.ts";
import { Holding } from "./holding.ts";

/** Names blocks of one group within their namespace; shards do not count, a block is all of them. */
export interface BlockRun {
  readonly namespace: Buffer;
  readonly recordClass: RecordClass;
  readonly group: number;
  /** 32 bytes per block; kept as long as any of them. */
  readonly hashes: Buffer;
  /** Hash of the block before the first; zeros where there is none. */
  readonly parent: Buffer;
  /** Blocks of the prompt before the first. */
  readonly first: number;
  /** On whose account they are stored; 0: nobody's in particular. */
  readonly tenant: number;
  /** By block: which vault of the class it lies on; beyond the end: 0. */
  readonly owners: Uint8Array;
  /** By block: which other vault has it, or is to have it, or NO_VAULT; left out: none has. */
  readonly seconds?: Uint8Array;
  /** By block: records of it that only the archive of its vault has; beyond the end: 0. */
  readonly far?: Uint8Array;
  /** Hashes of all blocks of the prompt that are known, of a run that others are cut from. */
  readonly whole?: Buffer;
  /** Name of the records that they are cut from: these are of another engine's longer blocks. */
  readonly cutFrom?: Buffer;
  /** Where blocks may be rebuilt: hashes of the stripes that they are of, from block `first` of the prompt on. */
  readonly stripes?: { readonly first: number; readonly hashes: Buffer } | null;
}

/** A use of a block by one plan. Told when the block's state changes. */
export interface BlockUser {
  /** Context of the span that fetches it; null: nobody wants one. */
  readonly trace?: Buffer | null;
  onBlock(): void;
}

export const NO_LEASES: Leases = new Uint32Array(0);

/** wanted: no slots yet · fetching: slots are being filled · placed: verified and decoded · gone: will not come (`failure`). */
export type BlockState = "wanted" | "fetching" | "placed" | "gone";

/** One of thousands that a restore touches: every field is there from the start, and nothing is allocated beside it. */
export class Block extends Holding {
  readonly key: string;
  readonly namespace: Buffer;
  readonly recordClass: RecordClass;
  readonly group: number;
  readonly run: BlockRun;
  /** Its hash is the one at `index`. */
  readonly hashes: Buffer;
  readonly index: number;
  state: BlockState = "wanted";
  failure: DoneReason | null = null;
  /** Pairs (slot, generation), one per shard from pair `leaseAt` on; others' may stand beside them. Empty while wanted. */
  leases: Leases = NO_LEASES;
  leaseAt = 0;
  /** The call that brings it, once one does. */
  call: { dropUnwanted(): void } | null = null;
  /** A flush took it: nobody else gets it, and its slots return once its users have left. */
  isFlushed = false;
  /** False until the first plan was told of it: later ones share it. */
  isShared = false;
  /** A record is being made of its bytes: it keeps its slots and its place in the order of eviction. */
  isLent = false;
  /** The other vault that has it, or is to have it. */
  readonly second: Holding | null;
  /** It is fetched from the other vault, because the first did not give it. */
  hasFailedOver = false;
  /** Most blocks have one. */
  user: BlockUser | null = null;
  others: Set<BlockUser> | null = null;

  constructor(key: string, run: BlockRun, index: number) {
    super(run.owners[index] ?? 0);
    const second = run.seconds?.[index] ?? NO_VAULT;
    this.second = second === NO_VAULT ? null : new Holding(second);
    this.key = key;
    this.namespace = run.namespace;
    this.recordClass = run.recordClass;
    this.group = run.group;
    this.run = run;
    this.hashes = run.hashes;
    this.index = index;
  }

  /** Its place in the prompt, from 0. */
  get at(): number {
    return this.run.first + this.index;
  }

  /** Which vault of its class it is fetched from. */
  get owner(): number {
    return this.vault;
  }

  /** Its vault takes it from an archive. */
  get isFar(): boolean {
    return !this.hasFailedOver && (this.run.far?.[this.index] ?? 0) > 0;
  }

  /** It may still come from another vault, and somebody wants it. */
  get mayFailOver(): boolean {
    const isOpen = this.state === "wanted" || this.state === "fetching";
    return (
      isOpen && this.second !== null && !this.hasFailedOver && !this.isFlushed && this.user !== null
    );
  }

  /** From now on it is wanted from the other vault. */
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

  /** False when it was none. */
  dropUser(user: BlockUser): boolean {
    if (this.user !== user) return this.others?.delete(user) ?? false;
    const [next = null] = this.others ?? [];
    this.user = next;
    if (next !== null) this.others?.delete(next);
    return true;
  }

  notifyUsers(): void {
    this.user?.onBlock();
    if (this.others !== null) for (const user of this.others) user.onBlock();
  }
}
