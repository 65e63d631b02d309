// Owns the receiving of one Fetch call: pieces into inboxes, every record verified and decoded into its slot before its block counts as placed.
import { ItemStatus, PACKED_KEY_BYTES, packKey } from "../../block.ts";
import type { FetchSink } from "../../client/fetch-ledger.ts";
import type { LandingPlan, Settled } from "../../client/lanes.ts";
import { TierkvError, toTierkvError } from "../../errors.ts";
import { inboxAbort, inboxFinish, inboxWrite, openInbox } from "../../native.ts";
import { nowMs } from "../../time.ts";
import type { Block, Shelf } from "../slots/shelf.ts";
import type { DoneReason } from "../socket/messages.ts";

export interface WindowOptions {
  blocks: readonly Block[];
  shards: number;
  arena: number;
  fidelity: number;
  shelf: Shelf;
  /** Native geometry of one group on one rank. */
  geometryOf(group: number, shard: number): number;
  onBytes(count: number): void;
  /** A record did not verify; `key` is its packed key. */
  onBadRecord(key: Buffer, error: TierkvError): void;
}

export class Window implements FetchSink {
  readonly #options: WindowOptions;
  /** Item i of the call: block i / shards, shard i % shards. One byte each: 1 = verified, in its slot. */
  readonly #isDone: Uint8Array;
  /** Items in the middle of arriving in pieces. */
  readonly #inboxes = new Map<number, number>();
  readonly #controller = new AbortController();
  /** When the last byte came. */
  lastMs: number = nowMs();
  /** Record bytes that have come. */
  bytes = 0;
  #isOver = false;

  constructor(options: WindowOptions) {
    this.#options = options;
    this.#isDone = new Uint8Array(options.blocks.length * options.shards);
    for (const block of options.blocks) block.call = this;
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  /** What the whole call is to bring, for lanes that put it where it belongs. */
  landingPlan(): LandingPlan {
    const { arena, fidelity, geometryOf, blocks, shards } = this.#options;
    const count = this.#isDone.length;
    const keys = Buffer.allocUnsafe(count * PACKED_KEY_BYTES);
    const geometries = new Uint32Array(count);
    const leases = new Uint32Array(count * 2);
    let [item, at] = [0, 0];
    for (const block of blocks) {
      for (let shard = 0; shard < shards; shard += 1) {
        at = packKey(keys, at, block.hashes, block.index, block.group, shard);
        geometries[item] = geometryOf(block.group, shard);
        const pair = (block.leaseAt + shard) * 2;
        leases[item * 2] = block.leases[pair] ?? 0;
        leases[item * 2 + 1] = block.leases[pair + 1] ?? 0;
        item += 1;
      }
    }
    return { arena, fidelity, keys, geometries, leases };
  }

  /** Something has arrived in a slot. */
  touch(): void {
    this.lastMs = nowMs();
  }

  /** What the lanes brought. Returns the items that they did not: those may still come in pieces. */
  settle({ statuses, bytes, reason }: Settled): number[] {
    this.#count(bytes);
    const left: number[] = [];
    for (let item = 0; item < statuses.length; item += 1) {
      const status = statuses[item];
      const block = this.#openBlock(item);
      if (block === null) continue;
      if (status === ItemStatus.ACCEPTED) this.#done(item, block);
      else if (status === ItemStatus.INCOMPLETE) left.push(item);
      else if (status === ItemStatus.OVER_BUDGET) this.#fail(block, "overload");
      else if (status === ItemStatus.BAD_RECORD) {
        const error = new TierkvError("BAD_RECORD", { reason: reason ?? "it is not sound" });
        this.#refuse(item, block, error);
      } else this.missing(item, ItemStatus.MISSING);
    }
    return left.filter((item) => this.#openBlock(item) !== null);
  }

  piece(item: number, offset: number, recordBytes: number, data: Buffer): void {
    this.lastMs = nowMs();
    this.#count(data.length);
    const block = this.#openBlock(item);
    if (block === null) return;
    try {
      const inbox = this.#inboxes.get(item) ?? this.#openInbox(item, block, recordBytes);
      if (!inboxWrite(inbox, offset, data)) return;
      this.#inboxes.delete(item);
      inboxFinish(inbox);
    } catch (caught) {
      const error = toTierkvError(caught);
      // Sealed with another key: nothing that the vault could know, and nothing to us.
      if (error.code === "RECORD_UNOPENED") this.missing(item, ItemStatus.MISSING);
      else this.#refuse(item, block, error);
      return;
    }
    this.#done(item, block);
  }

  missing(item: number, status: ItemStatus): void {
    this.lastMs = nowMs();
    const block = this.#openBlock(item);
    // INCOMPLETE: the call broke off. Anything else: the vault has dropped it since the look-up.
    const reason = status === ItemStatus.INCOMPLETE ? "vault_down" : "end_of_hit";
    if (block !== null) this.#fail(block, reason);
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

  #count(bytes: number): void {
    this.bytes += bytes;
    this.#options.onBytes(bytes);
  }

  #done(item: number, block: Block): void {
    const { shards, shelf } = this.#options;
    this.#isDone[item] = 1;
    const first = item - (item % shards);
    for (let at = first; at < first + shards; at += 1) if (this.#isDone[at] === 0) return;
    shelf.place(block);
  }

  /** The block of an item that may still come. */
  #openBlock(item: number): Block | null {
    const block = this.#options.blocks[Math.floor(item / this.#options.shards)];
    if (block?.state !== "fetching" || this.#isDone[item] !== 0 || this.#isOver) return null;
    return block;
  }

  #openInbox(item: number, block: Block, recordBytes: number): number {
    const { arena, fidelity, geometryOf, shards } = this.#options;
    const shard = item % shards;
    const pair = (block.leaseAt + shard) * 2;
    const inbox = openInbox(
      arena,
      block.leases[pair] ?? 0,
      block.leases[pair + 1] ?? 0,
      geometryOf(block.group, shard),
      fidelity,
      block.namespace,
      keyOf(block, shard),
      recordBytes,
    );
    this.#inboxes.set(item, inbox);
    return inbox;
  }

  #refuse(item: number, block: Block, error: TierkvError): void {
    const isOurs = error.code === "NO_MEMORY";
    if (!isOurs) this.#options.onBadRecord(keyOf(block, item % this.#options.shards), error);
    this.#fail(block, isOurs ? "overload" : "bad_record");
  }

  /** The whole block fails, also its other shards. */
  #fail(block: Block, reason: DoneReason): void {
    if (block.state !== "fetching") return;
    const { blocks, shards, shelf } = this.#options;
    for (const [item, inbox] of this.#inboxes) {
      if (blocks[Math.floor(item / shards)] !== block) continue;
      inboxAbort(inbox);
      this.#inboxes.delete(item);
    }
    shelf.fail(block, reason);
  }
}

function keyOf({ hashes, index, group }: Block, shard: number): Buffer {
  const key = Buffer.allocUnsafe(PACKED_KEY_BYTES);
  packKey(key, 0, hashes, index, group, shard);
  return key;
}
