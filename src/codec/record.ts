// Owns one record of the native outbox as JavaScript names it: encoded, or deferred: its sender encodes it.
import { outboxDrop } from "../native.ts";

/** Makes deferred records together: by record, its length, 0 where it cannot be made any more. */
export type MakeDeferred = () => Promise<ReadonlyMap<number, number>>;

/** It must be dropped, whatever became of it. */
export class OutboxRecord {
  /** In the native outbox. */
  readonly id: number;
  #bytes: number;
  #make: MakeDeferred | null;
  #users = 1;

  /** `make`: of a deferred record, whose slot must stay leased until it is dropped. */
  constructor(id: number, bytes: number, make: MakeDeferred | null) {
    this.id = id;
    this.#bytes = bytes;
    this.#make = make;
  }

  /** Its length; a deferred record's may turn out to be another one when it is made. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Its sender encodes it. */
  get isDeferred(): boolean {
    return this.#make !== null;
  }

  /** Of a deferred record that could not be sent as it was announced, because the codec has no codes for what it holds. What cannot be made stays a deferred record. */
  async make(): Promise<void> {
    const lengths = await this.#make?.();
    const bytes = lengths?.get(this.id) ?? 0;
    if (bytes === 0) return;
    this.#bytes = bytes;
    this.#make = null;
  }

  /** Somebody more sends it, and drops it, too. */
  keep(): void {
    this.#users += 1;
  }

  drop(): void {
    this.#users -= 1;
    if (this.#users === 0) outboxDrop(this.id);
  }
}
