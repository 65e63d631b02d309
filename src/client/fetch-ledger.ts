// Owns what a fetch has brought of each item: refuses pieces that do not follow, and lets every item end exactly once.
import { ItemStatus } from "../block.ts";
import type { Piece } from "../wire/messages.ts";

/** Takes what a fetch brings. Everything it is told happens inside the call; what it throws cancels the fetch. */
export interface FetchSink {
  /** Bytes of one item; offsets ascend without a gap, and the last piece ends at `recordBytes`. Not yet verified. */
  piece(item: number, offset: number, recordBytes: number, data: Buffer): void;
  /** Nothing (more) of this item will come: MISSING, or INCOMPLETE when the fetch broke off. */
  missing(item: number, status: ItemStatus): void;
}

export class FetchLedger {
  readonly #sink: FetchSink;
  /** Bytes got per item; -1 once the item has ended. */
  readonly #got: Float64Array;
  readonly #recordBytes: Float64Array;
  #open: number;
  #maxRecordBytes = 0;
  #broken: (reason: string) => Error = (reason) => new Error(reason);

  constructor(items: number, sink: FetchSink) {
    this.#sink = sink;
    this.#got = new Float64Array(items);
    this.#recordBytes = new Float64Array(items);
    this.#open = items;
  }

  /** Before the first piece: the vault's own limit, and the error for a vault that breaks the protocol. */
  begin(maxRecordBytes: number, broken: (reason: string) => Error): void {
    this.#maxRecordBytes = maxRecordBytes;
    this.#broken = broken;
  }

  /** True when no item is left to come. */
  get isComplete(): boolean {
    return this.#open === 0;
  }

  take(piece: Piece, firstItem: number): void {
    const item = firstItem + piece.item;
    const got = this.#got[item];
    if (got === undefined || got < 0) {
      throw this.#wrong(item, got === undefined ? "which was not asked for" : "which had ended");
    }
    if (piece.status !== ItemStatus.UNSPECIFIED) {
      this.#end(item);
      this.#tell(() => this.#sink.missing(item, piece.status as ItemStatus));
      return;
    }
    this.#check(piece, item, got);
    const end = got + piece.data.length;
    this.#recordBytes[item] = piece.recordBytes;
    this.#got[item] = end;
    if (end === piece.recordBytes) this.#end(item);
    this.#tell(() => this.#sink.piece(item, got, piece.recordBytes, piece.data));
  }

  /** Tells the sink of every item that has not ended. */
  closeOpen(status: ItemStatus): void {
    for (const [item, got] of this.#got.entries()) {
      if (got < 0) continue;
      this.#end(item);
      this.#tell(() => this.#sink.missing(item, status));
    }
  }

  /** A sink that threw is told nothing more. */
  #tell(say: () => void): void {
    try {
      say();
    } catch (error) {
      this.#got.fill(-1);
      throw error;
    }
  }

  #check(piece: Piece, item: number, got: number): void {
    const { offset, recordBytes, data } = piece;
    if (offset !== got) throw this.#wrong(item, `at offset ${offset}, expected ${got}`);
    if (data.length === 0) throw this.#wrong(item, "without a byte");
    if (recordBytes > this.#maxRecordBytes) {
      const limit = this.#maxRecordBytes;
      throw this.#wrong(item, `of a record of ${recordBytes} bytes, the limit is ${limit}`);
    }
    if (got > 0 && recordBytes !== this.#recordBytes[item]) {
      throw this.#wrong(item, `whose record length changed to ${recordBytes} bytes`);
    }
    if (offset + data.length > recordBytes) {
      throw this.#wrong(item, `that runs past its record's ${recordBytes} bytes`);
    }
  }

  #end(item: number): void {
    this.#got[item] = -1;
    this.#open -= 1;
  }

  #wrong(item: number, reason: string): Error {
    return this.#broken(`a piece of item ${item} ${reason}`);
  }
}
