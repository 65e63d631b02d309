// Owns one record of the native outbox as JavaScript names it: made, or a draft that who sends it makes.
import { outboxDrop, outboxView } from "../native.ts";

/** It must be dropped, whatever became of it. */
export class OutboxRecord {
  /** In the native outbox. */
  readonly id: number;
  #bytes: number;
  readonly #make: (() => Promise<void>) | null;

  /** `make`: of a draft, whose slot must stay leased until it is dropped; called as often as it is viewed. */
  constructor(id: number, bytes: number, make: (() => Promise<void>) | null) {
    this.id = id;
    this.#bytes = bytes;
    this.#make = make;
  }

  /** Its length; a draft's may turn out to be another one when it is viewed. */
  get bytes(): number {
    return this.#bytes;
  }

  /** The record's bytes, not copied; valid also after drop() for as long as the view is held. Throws where it cannot be made. */
  async view(): Promise<Buffer> {
    await this.#make?.();
    const view = outboxView(this.id);
    this.#bytes = view.length;
    return view;
  }

  drop(): void {
    outboxDrop(this.id);
  }
}
