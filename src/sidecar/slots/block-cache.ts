// Owns the cache of blocks in an engine's arena, placed or on their way: sharing, slots, and the order of eviction.
import { SIDECAR_OWNER } from "../../arena/arena.ts";
import type { Arena } from "../../arena/arena.ts";
import { HASH_BYTES } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import type { ArenaId } from "../../base/native.ts";
import type { Takes } from "../../client/flush-feed.ts";
import type { DoneReason } from "../socket/messages.ts";
import { Block, NO_LEASES } from "./block.ts";
import type { BlockRun, BlockUser } from "./block.ts";

export interface BlockCacheOptions {
  arena: Arena;
  /** Slots per block. */
  shards: number;
  /** Slots reserved for saves, over all workers. */
  saveSlots: number;
  /** Called when a block that is being fetched has lost its last user. */
  onUnwanted(block: Block): void;
  /** Called when more blocks may be taken than before. */
  onRoom(): void;
  /** Called with each block whose record was decoded into its slots. */
  onPlaced?(block: Block): void;
}

export class BlockCache {
  readonly #options: BlockCacheOptions;
  readonly #blocks = new Map<string, Block>();
  /** Number of blocks by the first two bytes of their hash, so that most look-ups need no key. */
  readonly #begins = new Uint32Array(0x1_0000);
  /** Placed blocks without a user, least recently used first. */
  readonly #idle = new Map<string, Block>();
  readonly #lent = new Set<Block>();
  /** Blocks that have slots. */
  #slotted = 0;
  /** Flushed blocks that are still in use or on their way. */
  #leaving = 0;
  #touchedSlots = 0;
  /** Slots once the whole arena is touched. */
  #slotsInTime: number;

  constructor(options: BlockCacheOptions) {
    this.#options = options;
    this.#slotsInTime = options.arena.slotCount;
  }

  get shards(): number {
    return this.#options.shards;
  }

  get arena(): ArenaId {
    return this.#options.arena.id;
  }

  get slotBytes(): number {
    return this.#options.arena.slotBytes;
  }

  get saveSlots(): number {
    return this.#options.saveSlots;
  }

  /** Blocks that restores may have in the arena, as far as its pages are touched. */
  get capacity(): number {
    const { shards, saveSlots } = this.#options;
    return Math.max(0, Math.floor((this.#touchedSlots - saveSlots) / shards));
  }

  /** Capacity once the whole arena is touched. */
  get capacityInTime(): number {
    const { shards, saveSlots } = this.#options;
    return Math.max(0, Math.floor((this.#slotsInTime - saveSlots) / shards));
  }

  /** Blocks that could be taken now without evicting a plan's. */
  get room(): number {
    let free = this.#idle.size;
    for (const block of this.#lent) if (this.#isIdle(block)) free -= 1;
    return this.capacity - (this.#blocks.size + this.#leaving - free);
  }

  get retained(): number {
    return this.#idle.size;
  }

  /** `areLast`: no more slots will be touched, so no plan may wait for them. */
  setTouched(slots: number, areLast = false): void {
    if (areLast) this.#slotsInTime = slots;
    if (slots === this.#touchedSlots) return;
    this.#touchedSlots = slots;
    this.#options.onRoom();
  }

  isPlaced(key: string): boolean {
    return this.#blocks.get(key)?.state === "placed";
  }

  /** Same for the hash at `index`; its key is made only where such a block may exist. */
  isPlacedAt(hashes: Buffer, index: number, keyOf?: (index: number) => string): boolean {
    return this.#begins[beginOf(hashes, index)] !== 0 && this.isPlaced(keyOf?.(index) ?? "");
  }

  /** True when using the block takes no room, because it has a user already. */
  isInUse(key: string): boolean {
    return this.#blocks.has(key) && !this.#idle.has(key);
  }

  /** Same for the hash at `index`. */
  isInUseAt(hashes: Buffer, index: number, keyOf: (index: number) => string): boolean {
    return this.#begins[beginOf(hashes, index)] !== 0 && this.isInUse(keyOf(index));
  }

  /** Adds a user to the block with that key, which is block `index` of `run`; a missing block is made as `wanted`. */
  use(key: string, run: BlockRun, index: number, user: BlockUser): Block {
    let block = this.#blocks.get(key);
    if (block === undefined) {
      block = new Block(key, run, index);
      this.#blocks.set(key, block);
      this.#count(block, 1);
    } else {
      this.#idle.delete(key);
      block.offeredEpoch = null;
      if (block.second !== null) block.second.offeredEpoch = null;
    }
    block.addUser(user);
    return block;
  }

  /** Removes a user. Without users, a placed block stays until room is short, and a wanted one goes at once. */
  leave(block: Block, user: BlockUser): void {
    if (!block.dropUser(user) || block.userCount > 0) return;
    if (block.state === "placed" && block.isFlushed) {
      this.#removeUnlent(block);
    } else if (block.state === "placed") {
      this.#idle.set(block.key, block);
      this.#options.onRoom();
    } else if (block.state === "wanted") {
      this.fail(block, "deadline");
    } else if (block.state === "fetching") {
      this.#options.onUnwanted(block);
    }
  }

  /** Evicts a block that no plan uses, before any other. */
  drop(block: Block): void {
    if (this.#isIdle(block) && !block.isLent) this.#removeUnlent(block);
  }

  /** Leases slots for wanted blocks, evicting idle ones if need be; returns how many of the first got theirs. */
  startFetch(blocks: readonly Block[]): number {
    const { arena, shards } = this.#options;
    while (this.#slotted + blocks.length > this.capacity && this.#evictOldest());
    const most = Math.max(0, Math.min(blocks.length, this.capacity - this.#slotted));
    let leases = arena.lease(SIDECAR_OWNER, most * shards);
    while (leases.length < most * shards * 2 && this.#evictOldest()) {
      const more = arena.lease(SIDECAR_OWNER, most * shards - leases.length / 2);
      leases = Uint32Array.of(...leases, ...more);
    }
    const count = Math.floor(leases.length / 2 / shards);
    arena.releaseAll(leases, count * shards);
    for (let at = 0; at < count; at += 1) {
      const block = blocks[at];
      if (block === undefined) break;
      block.leases = leases;
      block.leaseAt = at * shards;
      block.state = "fetching";
    }
    this.#slotted += count;
    return count;
  }

  /** Yields placed blocks of a class and namespace that a vault may store; cut blocks have no records of their own. */
  *copies(recordClass: RecordClass, namespace: Buffer): Generator<Block> {
    for (const block of this.#blocks.values()) {
      const isOf = block.recordClass === recordClass && block.namespace.equals(namespace);
      const isStored = block.run.cutFrom === undefined;
      if (isOf && isStored && block.state === "placed") yield block;
    }
  }

  /** Keeps a block's slots, and its place in the order of eviction, until `takeBack`; false when it has none to keep. */
  lend(block: Block): boolean {
    if (block.state !== "placed" || block.isFlushed || block.isLent) return false;
    block.isLent = true;
    this.#lent.add(block);
    return true;
  }

  takeBack(block: Block): void {
    block.isLent = false;
    this.#lent.delete(block);
    if (block.isFlushed && block.userCount === 0) this.#removeUnlent(block);
    else this.#options.onRoom();
  }

  /**
   * Withdraws the blocks of a class that `takes` names and that lie on `vault` (null: any), and returns the placed ones. Blocks in
   * use keep their slots until their plans leave them, blocks on their way until they have come.
   */
  flush(recordClass: RecordClass, takes: Takes, vault: number | null = null): Block[] {
    const dropped: Block[] = [];
    for (const block of this.#blocks.values()) {
      const isOf = vault === null || vault === block.owner;
      if (block.recordClass !== recordClass || !isOf) continue;
      if (!isTaken(block, takes)) continue;
      block.isFlushed = true;
      if (block.state === "placed") dropped.push(block);
      if (this.#isIdle(block)) {
        this.#dropIdle(block);
      } else if (block.state === "wanted") {
        this.fail(block, "flushed");
      } else {
        this.#hide(block);
        block.notifyUsers();
      }
    }
    this.#options.onRoom();
    return dropped;
  }

  place(block: Block): void {
    if (block.isFlushed) {
      this.fail(block, "flushed");
      return;
    }
    block.state = "placed";
    block.call = null;
    this.#options.onPlaced?.(block);
    if (block.user === null) {
      this.#idle.set(block.key, block);
      this.#options.onRoom();
    }
    block.notifyUsers();
  }

  /** Frees the block's slots and wants it from the other vault; false where none may have it or no user is left. */
  failOver(block: Block): boolean {
    if (!block.mayFailOver) return false;
    this.#freeSlots(block);
    block.failOver();
    return true;
  }

  /** Gives up a block that will not come; its slots return. */
  fail(block: Block, reason: DoneReason): void {
    if (block.state === "gone") return;
    this.#remove(block);
    block.failure = reason;
    block.notifyUsers();
    this.#options.onRoom();
  }

  #isIdle(block: Block): boolean {
    return this.#idle.get(block.key) === block;
  }

  #evictOldest(): boolean {
    for (const oldest of this.#idle.values()) {
      if (oldest.isLent) continue;
      this.#remove(oldest);
      return true;
    }
    return false;
  }

  /** Withdraws an idle block; its slots return at once, or when it is taken back. */
  #dropIdle(block: Block): void {
    if (!block.isLent) {
      this.#remove(block);
      return;
    }
    block.isFlushed = true;
    this.#idle.delete(block.key);
    this.#hide(block);
  }

  #count({ hashes, index }: Block, change: number): void {
    const at = beginOf(hashes, index);
    this.#begins[at] = (this.#begins[at] ?? 0) + change;
  }

  #hide(block: Block): void {
    if (this.#blocks.delete(block.key)) this.#count(block, -1);
    this.#leaving += 1;
  }

  #removeUnlent(block: Block): void {
    if (block.isLent) return;
    this.#remove(block);
    this.#options.onRoom();
  }

  #remove(block: Block): void {
    if (this.#blocks.get(block.key) === block) {
      this.#blocks.delete(block.key);
      this.#count(block, -1);
    } else this.#leaving -= 1;
    if (this.#isIdle(block)) this.#idle.delete(block.key);
    block.state = "gone";
    block.call = null;
    this.#freeSlots(block);
  }

  #freeSlots(block: Block): void {
    if (block.leases.length === 0) return;
    const { arena, shards } = this.#options;
    arena.releaseAll(block.leases, block.leaseAt, shards);
    block.leases = NO_LEASES;
    this.#slotted -= 1;
  }
}

/** True when a flush names the block, or the longer blocks it was cut from. */
function isTaken(
  { namespace, run: { cutFrom = namespace, tenant } }: Block,
  takes: Takes,
): boolean {
  return takes(namespace, tenant) || takes(cutFrom, tenant);
}

function beginOf(hashes: Buffer, index: number): number {
  const at = index * HASH_BYTES;
  return (hashes[at] ?? 0) | ((hashes[at + 1] ?? 0) << 8);
}
