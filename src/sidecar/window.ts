// Owns the receiving of one Fetch call: pieces into inboxes, every record verified and decoded into its slot before its block counts as placed.
import { ItemStatus, PACKED_KEY_BYTES, packKey, packKeys } from "../block.ts";
import type { FetchSink } from "../client/fetch-ledger.ts";
import type { LandingPlan, Settled } from "../client/lanes.ts";
import { TierkvError, toTierkvError } from "../errors.ts";
import { inboxAbort, inboxFinish, inboxWrite, openInbox } from "../native.ts";
import { nowMs } from "../time.ts";
import type { DoneReason } from "./messages.ts";
import type { Block, Shelf } from "./shelf.ts";

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

interface Part {
  readonly block: Block;
  readonly shard: number;
  /** Item number of the block's first shard. */
  readonly first: number;
  inbox: number | null;
  isDone: boolean;
}

export class Window implements FetchSink {
  readonly #options: WindowOptions;
  /** Item i of the call: block i / shards, shard i % shards. */
  readonly #parts: readonly Part[];
  readonly #controller = new AbortController();
  /** When the last byte came. */
  lastMs: number = nowMs();
  /** Record bytes that have come. */
  bytes = 0;
  #isOver = false;

  constructor(options: WindowOptions) {
    this.#options = options;
    this.#parts = options.blocks.flatMap((block, index) =>
      Array.from({ length: options.shards }, (_, shard) => ({
        block,
        shard,
        first: index * options.shards,
        inbox: null,
        isDone: false,
      })),
    );
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** What the whole call is to bring, for lanes that put it where it belongs. */
  landingPlan(): LandingPlan {
    const { arena, fidelity, geometryOf } = this.#options;
    const count = this.#parts.length;
    const keys = Buffer.allocUnsafe(count * PACKED_KEY_BYTES);
    const geometries = new Uint32Array(count);
    const leases = new Uint32Array(count * 2);
    for (let index = 0; index < count; index += 1) {
      const part = this.#parts[index];
      if (part === undefined) continue;
      const { block, shard } = part;
      packKey(keys, index * PACKED_KEY_BYTES, block.hash, 0, block.group, shard);
      geometries[index] = geometryOf(block.group, shard);
      leases[index * 2] = block.leases[shard * 2] ?? 0;
      leases[index * 2 + 1] = block.leases[shard * 2 + 1] ?? 0;
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
    for (const [item, status] of statuses.entries()) {
      const part = this.#openPart(item);
      if (part === null) continue;
      if (status === ItemStatus.ACCEPTED) this.#done(part);
      else if (status === ItemStatus.INCOMPLETE) left.push(item);
      else if (status === ItemStatus.OVER_BUDGET) this.#fail(part, "overload");
      else if (status === ItemStatus.BAD_RECORD) {
        this.#refuse(part, new TierkvError("BAD_RECORD", { reason: reason ?? "it is not sound" }));
      } else this.missing(item, ItemStatus.MISSING);
    }
    return left.filter((item) => this.#openPart(item) !== null);
  }

  piece(item: number, offset: number, recordBytes: number, data: Buffer): void {
    this.lastMs = nowMs();
    this.#count(data.length);
    const part = this.#openPart(item);
    if (part === null) return;
    try {
      part.inbox ??= this.#openInbox(part, recordBytes);
      if (!inboxWrite(part.inbox, offset, data)) return;
      const inbox = part.inbox;
      part.inbox = null;
      inboxFinish(inbox);
    } catch (error) {
      this.#refuse(part, toTierkvError(error));
      return;
    }
    this.#done(part);
  }

  missing(item: number, status: ItemStatus): void {
    this.lastMs = nowMs();
    const part = this.#openPart(item);
    // INCOMPLETE: the call broke off. Anything else: the vault has dropped it since the look-up.
    const reason = status === ItemStatus.INCOMPLETE ? "vault_down" : "end_of_hit";
    if (part !== null) this.#fail(part, reason);
  }

  /** Gives the call up as soon as nobody wants what is left of it. */
  dropUnwanted(): void {
    const isWanted = ({ block }: Part): boolean =>
      block.state === "fetching" && block.users.size > 0;
    if (!this.#parts.some(isWanted)) this.end("deadline");
  }

  /** The call is over, or is given up: what has not come will not. Nothing is written to a slot after this. */
  end(reason: DoneReason): void {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const part of this.#parts) this.#fail(part, reason);
    this.#controller.abort();
  }

  #count(bytes: number): void {
    this.bytes += bytes;
    this.#options.onBytes(bytes);
  }

  #done(part: Part): void {
    part.isDone = true;
    if (this.#options.shards === 1 || this.#shardsOf(part).every(({ isDone }) => isDone)) {
      this.#options.shelf.place(part.block);
    }
  }

  #openPart(item: number): Part | null {
    const part = this.#parts[item];
    const isOpen = part !== undefined && !part.isDone && part.block.state === "fetching";
    return isOpen && !this.#isOver ? part : null;
  }

  #openInbox({ block, shard }: Part, recordBytes: number): number {
    const { arena, fidelity, geometryOf } = this.#options;
    return openInbox(
      arena,
      block.leases[shard * 2] ?? 0,
      block.leases[shard * 2 + 1] ?? 0,
      geometryOf(block.group, shard),
      fidelity,
      block.namespace,
      keyOf({ block, shard }),
      recordBytes,
    );
  }

  #refuse(part: Part, error: TierkvError): void {
    const isOurs = error.code === "NO_MEMORY";
    if (!isOurs) {
      this.#options.onBadRecord(keyOf(part), error);
    }
    this.#fail(part, isOurs ? "overload" : "bad_record");
  }

  /** The whole block fails, also its other shards. */
  #fail(failed: Part, reason: DoneReason): void {
    if (failed.block.state !== "fetching") return;
    for (const part of this.#shardsOf(failed)) {
      if (part.inbox !== null) inboxAbort(part.inbox);
      part.inbox = null;
    }
    this.#options.shelf.fail(failed.block, reason);
  }

  #shardsOf({ first }: Part): readonly Part[] {
    return this.#parts.slice(first, first + this.#options.shards);
  }
}

function keyOf({ block, shard }: Pick<Part, "block" | "shard">): Buffer {
  return packKeys(block.hash, block.group, shard);
}
