// Owns one Fetch call: which records it brings into which slots, and what became of each block.
import { ItemStatus, keyAt, KeyPacker } from "../../block.ts";
import type { FetchPlan, Settled } from "../../client/lane-requests.ts";
import { TierkvError } from "../../errors.ts";
import type { ArenaId } from "../../native.ts";
import { nowMs } from "../../time.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { Block } from "../slots/block.ts";
import type { DoneReason } from "../socket/messages.ts";

export interface WindowOptions {
  blocks: readonly Block[];
  shards: number;
  arena: ArenaId;
  fidelity: number;
  cache: BlockCache;
  /** Native geometry of one group on one rank. */
  geometryOf(group: number, shard: number): number;
  onBytes(count: number): void;
  /** Whether a block that did not come may come from elsewhere: then it is nobody's business here any more. */
  mayFailOver(block: Block, reason: DoneReason): boolean;
  /** A record did not verify; `key` is its packed key. */
  onBadRecord(key: Buffer, error: TierkvError): void;
}

export class Window {
  readonly #options: WindowOptions;
  /** Item i of the call: block i / shards, shard i % shards. One byte each: 1 = verified, in its slot. */
  readonly #isDone: Uint8Array;
  readonly #controller = new AbortController();
  /** Of each item. */
  readonly #keys: Buffer;
  /** When the last byte came. */
  lastMs: number = nowMs();
  /** Record bytes that have come. */
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

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  /** What the whole call is to bring, and where to. */
  fetchPlan(): FetchPlan {
    const { arena, fidelity, geometryOf, blocks, shards } = this.#options;
    const count = this.#isDone.length;
    const geometries = new Uint32Array(count);
    const leases = new Uint32Array(count * 2);
    let item = 0;
    // A call has one span: that of the first request that has a part in it.
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
    return { arena, fidelity, keys: this.#keys, geometries, leases, trace };
  }

  /** Something has arrived in a slot. */
  touch(): void {
    this.lastMs = nowMs();
  }

  /** What was brought; verified and decoded is what was ACCEPTED. */
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
        const error = new TierkvError("BAD_RECORD", { reason: reason ?? "it is not sound" });
        this.#options.onBadRecord(keyAt(this.#keys, item), error);
        this.#fail(block, "bad_record");
      } else {
        // The vault has dropped it since the look-up.
        this.#fail(block, "end_of_hit");
      }
    }
  }

  /** Gives the call up as soon as nobody wants what is left of it. */
  dropUnwanted(): void {
    const isWanted = ({ state, user }: Block): boolean => state === "fetching" && user !== null;
    if (!this.#options.blocks.some(isWanted)) this.end("deadline");
  }

  /** The call has ended by itself: what has not come will not. Nothing is written to a slot after this. */
  finish(reason: DoneReason): void {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const block of this.#options.blocks) this.#fail(block, reason);
  }

  /** As `finish`, of a call that is still open: it is given up. */
  end(reason: DoneReason): void {
    if (this.#isOver) return;
    this.finish(reason);
    this.#controller.abort();
  }

  #done(item: number, block: Block): void {
    const { shards, cache } = this.#options;
    this.#isDone[item] = 1;
    const first = item - (item % shards);
    for (let at = first; at < first + shards; at += 1) if (this.#isDone[at] === 0) return;
    cache.place(block);
  }

  /** The block of an item that may still come. */
  #openBlock(item: number): Block | null {
    const block = this.#options.blocks[Math.floor(item / this.#options.shards)];
    if (block?.state !== "fetching" || block.call !== this) return null;
    if (this.#isDone[item] !== 0 || this.#isOver) return null;
    return block;
  }

  /** The whole block fails, also its other shards. */
  #fail(block: Block, reason: DoneReason): void {
    // One that failed over to another vault is of another call.
    if (block.state !== "fetching" || block.call !== this) return;
    const { cache, mayFailOver } = this.#options;
    if (!mayFailOver(block, reason)) cache.fail(block, reason);
  }
}
