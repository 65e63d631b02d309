// Owns the receiving of one Fetch call: pieces into inboxes, every record verified and decoded into its slot before its block counts as placed.
import { ItemStatus, packKeys } from "../block.ts";
import type { FetchSink } from "../client/fetch-ledger.ts";
import { toTierkvError } from "../errors.ts";
import type { TierkvError } from "../errors.ts";
import { inboxAbort, inboxFinish, inboxWrite, openInbox } from "../native.ts";
import { nowMs } from "../time.ts";
import type { DoneReason } from "./messages.ts";
import type { Block, Shelf } from "./shelf.ts";

export interface WindowOptions {
  blocks: readonly Block[];
  world: number;
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
  /** Item i of the call: block i / world, shard i % world. */
  readonly #parts: readonly Part[];
  readonly #controller = new AbortController();
  /** When the last byte came. */
  lastMs: number = nowMs();
  #isOver = false;

  constructor(options: WindowOptions) {
    this.#options = options;
    this.#parts = options.blocks.flatMap((block, index) =>
      Array.from({ length: options.world }, (_, shard) => ({
        block,
        shard,
        first: index * options.world,
        inbox: null,
        isDone: false,
      })),
    );
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  piece(item: number, offset: number, recordBytes: number, data: Buffer): void {
    this.lastMs = nowMs();
    this.#options.onBytes(data.length);
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
    part.isDone = true;
    if (this.#shardsOf(part).every(({ isDone }) => isDone)) {
      this.#options.shelf.place(part.block);
    }
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
      packKeys(block.hash, block.group, shard),
      recordBytes,
    );
  }

  #refuse(part: Part, error: TierkvError): void {
    const isOurs = error.code === "NO_MEMORY";
    if (!isOurs) {
      this.#options.onBadRecord(packKeys(part.block.hash, part.block.group, part.shard), error);
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
    return this.#parts.slice(first, first + this.#options.world);
  }
}
