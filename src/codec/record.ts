// Owns one record of the native outbox as JavaScript names it: encoded, or deferred until its sender encodes it.
import { outboxDrop } from "../base/native.ts";

/** Makes deferred records together: returns lengths by record, 0 where one cannot be made any more. */
export type MakeDeferred = () => Promise<ReadonlyMap<number, number>>;

/** A record that each user must drop, whatever became of it. */
export class OutboxRecord {
  /** Id in the native outbox. */
  readonly id: number;
  #bytes: number;
  #make: MakeDeferred | null;
  #users = 1;

  /** `make` is set for a deferred record, whose slot must stay leased until the record is dropped. */
  constructor(id: number, bytes: number, make: MakeDeferred | null) {
    this.id = id;
    this.#bytes = bytes;
    this.#make = make;
  }

  /** Length; a deferred record's may change when it is made. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Whether its sender encodes it. */
  get isDeferred(): boolean {
    return this.#make !== null;
  }

  /** Encodes a deferred record that could not be sent as announced, because its codec had no codes for its values. A failed one stays deferred. */
  async make(): Promise<void> {
    const lengths = await this.#make?.();
    const bytes = lengths?.get(this.id) ?? 0;
    if (bytes === 0) return;
    this.#bytes = bytes;
    this.#make = null;
  }

  /** Adds one more user, who drops it, too. */
  keep(): void {
    this.#users += 1;
  }

  drop(): void {
    this.#users -= 1;
    if (this.#users === 0) outboxDrop(this.id);
  }
}
