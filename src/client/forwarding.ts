// Owns what a source answers by another one: its name, address, state and meter, and reports of damaged records.
import type { ItemStatus, RecordClass } from "../base/block.ts";
import type { Goodput } from "../base/native.ts";
import type { BlockSource, PeerState, Tier } from "./source.ts";

/** Base of sources in front of another one, or behind it; `find` and `fetch` are their own. */
export class Forwarding<Inner extends BlockSource = BlockSource> {
  protected readonly inner: Inner;

  constructor(inner: Inner) {
    this.inner = inner;
  }

  get tier(): Tier {
    return this.inner.tier;
  }

  get name(): RecordClass {
    return this.inner.name;
  }

  get address(): string {
    return this.inner.address;
  }

  get state(): PeerState {
    return this.inner.state;
  }

  get trouble(): string {
    return this.inner.trouble;
  }

  get isDown(): boolean {
    return this.inner.isDown;
  }

  get cut(): readonly string[] {
    return this.inner.cut ?? [];
  }

  get isRefusing(): boolean {
    return this.inner.isRefusing ?? false;
  }

  get isLent(): boolean {
    return this.inner.isLent ?? false;
  }

  get epoch(): number | null {
    return this.inner.epoch;
  }

  get down(): Goodput {
    return this.inner.down;
  }

  report(
    namespace: Buffer,
    keys: Buffer,
    reason: string,
    deadlineMs: number,
    tenant?: number,
  ): Promise<ItemStatus[]> {
    return this.inner.report(namespace, keys, reason, deadlineMs, tenant);
  }
}
