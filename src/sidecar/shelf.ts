// Owns the blocks that lie in an engine's arena, or are on their way: who shares them, which slots they have, which go first when room is short.
import { SIDECAR_OWNER } from "../arena/arena.ts";
import type { Arena, Leases } from "../arena/arena.ts";
import { HASH_BYTES } from "../block.ts";
import type { RecordClass } from "../block.ts";
import type { DoneReason } from "./messages.ts";

/** Names a block within its namespace; shards do not count, a block is all of them. */
export interface BlockName {
  readonly namespace: Buffer;
  readonly recordClass: RecordClass;
  readonly group: number;
  readonly hash: Buffer;
}

/** A use of a block by one plan. Told when the block's state changes. */
export interface BlockUser {
  onBlock(): void;
}

/** wanted: no slots yet · fetching: slots are being filled · placed: verified and decoded · gone: will not come (`failure`). */
export type BlockState = "wanted" | "fetching" | "placed" | "gone";

export interface Block extends BlockName {
  readonly key: string;
  state: BlockState;
  failure: DoneReason | null;
  /** Pairs (slot, generation), one per shard; empty while wanted. */
  leases: Leases;
  readonly users: Set<BlockUser>;
  /** False until the first plan was told of it: later ones share it. */
  isShared: boolean;
}

export interface ShelfOptions {
  arena: Arena;
  /** Slots per block. */
  shards: number;
  /** Slots that belong to saves, all workers together. */
  saveSlots: number;
  /** A block that is being fetched has lost its last user. */
  onUnwanted(block: Block): void;
  /** A block more may be taken than before. */
  onRoom(): void;
}

const NO_LEASES: Leases = new Uint32Array(0);

export function blockKey(namespace: Buffer, group: number, hash: Buffer): string {
  return blockKeys(namespace, group, hash)(0);
}

/** Keys of one group's blocks by index, from hashes of 32 bytes each: what all have in common is made once. */
export function blockKeys(
  namespace: Buffer,
  group: number,
  hashes: Buffer,
): (index: number) => string {
  const all = hashes.toString("latin1");
  const tail = `${namespace.toString("latin1")}${group}`;
  return (index) => all.slice(index * HASH_BYTES, (index + 1) * HASH_BYTES) + tail;
}

export class Shelf {
  readonly #options: ShelfOptions;
  readonly #blocks = new Map<string, Block>();
  /** Placed blocks without a user, the least recently used first. */
  readonly #idle = new Map<string, Block>();
  /** Blocks that have slots. */
  #slotted = 0;
  #touchedSlots = 0;

  constructor(options: ShelfOptions) {
    this.#options = options;
  }

  /** Blocks the restore side may have in the arena at all, as far as it is touched. */
  get capacity(): number {
    const { shards, saveSlots } = this.#options;
    return Math.max(0, Math.floor((this.#touchedSlots - saveSlots) / shards));
  }

  /** What `capacity` will be when the whole arena is touched. */
  get capacityInTime(): number {
    const { arena, shards, saveSlots } = this.#options;
    return Math.max(0, Math.floor((arena.slotCount - saveSlots) / shards));
  }

  /** Blocks that could be taken now without taking one from a plan. */
  get room(): number {
    return this.capacity - (this.#blocks.size - this.#idle.size);
  }

  get retained(): number {
    return this.#idle.size;
  }

  setTouched(slots: number): void {
    if (slots === this.#touchedSlots) return;
    this.#touchedSlots = slots;
    this.#options.onRoom();
  }

  isPlaced(key: string): boolean {
    return this.#blocks.get(key)?.state === "placed";
  }

  /** True when using the block takes no room: somebody else holds it already. */
  isInUse(key: string): boolean {
    return this.#blocks.has(key) && !this.#idle.has(key);
  }

  /** The block of that key with one user more; made as `wanted` when it is not there. */
  use(key: string, name: BlockName, user: BlockUser): Block {
    let block = this.#blocks.get(key);
    if (block === undefined) {
      block = {
        ...name,
        key,
        state: "wanted",
        failure: null,
        leases: NO_LEASES,
        users: new Set(),
        isShared: false,
      };
      this.#blocks.set(key, block);
    }
    this.#idle.delete(key);
    block.users.add(user);
    return block;
  }

  /** One user less. Without users a placed block stays until room is short, a wanted one goes at once. */
  leave(block: Block, user: BlockUser): void {
    if (!block.users.delete(user) || block.users.size > 0) return;
    if (block.state === "placed") {
      this.#idle.set(block.key, block);
      this.#options.onRoom();
    } else if (block.state === "wanted") {
      this.fail(block, "deadline");
    } else if (block.state === "fetching") {
      this.#options.onUnwanted(block);
    }
  }

  /** Gives a wanted block its slots, if need be those of idle blocks; false when there are none. */
  startFetch(block: Block): boolean {
    const { arena, shards } = this.#options;
    while (this.#slotted >= this.capacity) if (!this.#evictOldest()) return false;
    let leases = arena.lease(SIDECAR_OWNER, shards);
    while (leases.length < shards * 2) {
      arena.releaseAll(leases);
      if (!this.#evictOldest()) return false;
      leases = arena.lease(SIDECAR_OWNER, shards);
    }
    block.leases = leases;
    block.state = "fetching";
    this.#slotted += 1;
    return true;
  }

  place(block: Block): void {
    block.state = "placed";
    if (block.users.size === 0) {
      this.#idle.set(block.key, block);
      this.#options.onRoom();
    }
    for (const user of block.users) user.onBlock();
  }

  /** The block will not come; its slots return. */
  fail(block: Block, reason: DoneReason): void {
    if (block.state === "gone") return;
    this.#remove(block);
    block.failure = reason;
    for (const user of block.users) user.onBlock();
    this.#options.onRoom();
  }

  #evictOldest(): boolean {
    const [oldest] = this.#idle.values();
    if (oldest === undefined) return false;
    this.#remove(oldest);
    return true;
  }

  #remove(block: Block): void {
    this.#blocks.delete(block.key);
    this.#idle.delete(block.key);
    block.state = "gone";
    if (block.leases.length === 0) return;
    this.#options.arena.releaseAll(block.leases);
    block.leases = NO_LEASES;
    this.#slotted -= 1;
  }
}
