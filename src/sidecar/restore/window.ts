// Owns one Fetch call: which records it brings into which slots, and what became of each block.
import { ItemStatus, keyAt, KeyPacker } from "../../base/block.ts";
import { Cancellation } from "../../base/cancellation.ts";
import type { CancelSignal } from "../../base/cancellation.ts";
import { TierkvError } from "../../base/errors.ts";
import type { ArenaId } from "../../base/native.ts";
import type { BlockSource, FetchWindow, Settled } from "../../client/source.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { Block } from "../slots/block.ts";
import type { DoneReason } from "../socket/messages.ts";

export interface WindowOptions {
  blocks: readonly Block[];
  /** Where they are fetched. */
  source: BlockSource;
  shards: number;
  arena: ArenaId;
  fidelity: number;
  cache: BlockCache;
  /** Native geometry of one group on one rank. */
  geometryOf(group: number, shard: number): number;
  onBytes(count: number): void;
  /** Returns true when another source takes over a block that did not come: the window then drops it. */
  mayFailOver(block: Block, reason: DoneReason): boolean;
  /** Called for a record that failed verification; `key` is its packed key. */
  onBadRecord(key: Buffer, error: TierkvError): void;
}

export class Window {
  readonly #options: WindowOptions;
  /** One byte per item, 1 = verified and in its slot. Item i is shard i % shards of block i / shards. */
  readonly #isDone: Uint8Array;
  readonly #cancellation = new Cancellation();
  /** Packed key of each item. */
  readonly #keys: Buffer;
  /** Record bytes received. */
  bytes = 0;
  #isOver = false;

  constructor(options: WindowOptions) {
    this.#options = options;
    this.#isDone = new Uint8Array(options.blocks.length * options.shards);
    const packer = new KeyPacker(this.#isDone.length);
    for (const block of options.blocks) {
      block.call = this;
      packer.add(block.hashes, block.index, block.group, options.shards);
    }
    this.#keys = packer.keys;
  }

  get signal(): CancelSignal {
    return this.#cancellation;
  }

  get source(): BlockSource {
    return this.#options.source;
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  /** Returns the keys to fetch and the slots they go to. */
  asked(): FetchWindow {
    const { arena, fidelity, geometryOf, blocks, shards } = this.#options;
    const count = this.#isDone.length;
    const geometries = new Uint32Array(count);
    const leases = new Uint32Array(count * 2);
    let item = 0;
    // A call has one span: that of the first request with a part in it.
    let trace: Buffer | null = null;
    for (const block of blocks) {
      trace ??= block.user?.trace ?? null;
      for (let shard = 0; shard < shards; shard += 1) {
        geometries[item] = geometryOf(block.group, shard);
        const pair = (block.leaseAt + shard) * 2;
        leases[item * 2] = block.leases[pair] ?? 0;
        leases[item * 2 + 1] = block.leases[pair + 1] ?? 0;
        item += 1;
      }
    }
    const tenant = blocks[0]?.run.tenant ?? 0;
    return { arena, fidelity, keys: this.#keys, geometries, leases, trace, tenant };
  }

  /** Takes the status of each item; ACCEPTED means verified and decoded in its slot. */
  settle({ statuses, bytes, reason }: Settled): void {
    this.bytes += bytes;
    this.#options.onBytes(bytes);
    for (let item = 0; item < statuses.length; item += 1) {
      const status = statuses[item];
      const block = this.#openBlock(item);
      if (block === null) continue;
      if (status === ItemStatus.ACCEPTED) this.#done(item, block);
      else if (status === ItemStatus.OVER_BUDGET) this.#fail(block, "overload");
      else if (status === ItemStatus.INCOMPLETE) this.#fail(block, "vault_down");
      else if (status === ItemStatus.BAD_RECORD) {
        const error = new TierkvError("BAD_RECORD", { reason: reason ?? "the record is damaged" });
        this.#options.onBadRecord(keyAt(this.#keys, item), error);
        this.#fail(block, "bad_record");
      } else {
        // The vault has dropped the record since the look-up.
        this.#fail(block, "end_of_hit");
      }
    }
  }

  /** Gives the call up once none of its missing blocks has a user. */
  dropUnwanted(): void {
    const isWanted = ({ state, user }: Block): boolean => state === "fetching" && user !== null;
    if (!this.#options.blocks.some(isWanted)) this.end("deadline");
  }

  /** Fails the missing blocks after the call has ended. No slot is written afterwards. */
  finish(reason: DoneReason): void {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const block of this.#options.blocks) this.#fail(block, reason);
  }

  /** Gives up a call that is still open: finishes and aborts it. */
  end(reason: DoneReason): void {
    if (this.#isOver) return;
    this.finish(reason);
    this.#cancellation.abort();
  }

  #done(item: number, block: Block): void {
    const { shards, cache } = this.#options;
    this.#isDone[item] = 1;
    const first = item - (item % shards);
    for (let at = first; at < first + shards; at += 1) if (this.#isDone[at] === 0) return;
    cache.place(block);
  }

  /** Returns the block of an item that may still come, or null. */
  #openBlock(item: number): Block | null {
    const block = this.#options.blocks[Math.floor(item / this.#options.shards)];
    if (block?.state !== "fetching" || block.call !== this) return null;
    if (this.#isDone[item] !== 0 || this.#isOver) return null;
    return block;
  }

  /** Fails the whole block, its other shards included. */
  #fail(block: Block, reason: DoneReason): void {
    // A block that failed over to another vault belongs to another call.
    if (block.state !== "fetching" || block.call !== this) return;
    const { cache, mayFailOver } = this.#options;
    if (!mayFailOver(block, reason)) cache.fail(block, reason);
  }
}
