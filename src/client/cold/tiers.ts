// Owns two places as one: a vault or Valkey that is asked first, and a bucket behind it for what the first one lacks.
import {
  countBits,
  HASH_BYTES,
  hasBit,
  keyCount,
  newBitmap,
  PACKED_KEY_BYTES,
  setBit,
} from "../../base/block.ts";
import type { ItemStatus } from "../../base/block.ts";
import { ItemStatus as Status } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import type { TierkvError } from "../../base/errors.ts";
import { TIER_COST_SMOOTHING, TIER_KEYS_MIN } from "../../base/limits/cold.ts";
import type { Logger } from "../../base/log.ts";
import type { Goodput } from "../../base/native.ts";
import { nowMs } from "../../base/time.ts";
import type { FlushFeed } from "../flush-feed.ts";
import { Forwarding } from "../forwarding.ts";
import { OF_A_REQUEST } from "../source.ts";
import type {
  BlockSource,
  BlockStore,
  Cost,
  FetchOptions,
  FetchWindow,
  Offer,
  Purpose,
  Refusal,
  Settled,
  StoreItem,
} from "../source.ts";

/** The bucket as a source behind the first place, with its cost as measured here. */
class Far extends Forwarding implements BlockSource {
  /** Milliseconds of a look-up, which is a request or a few, and of each record of a fetch beyond that. */
  #firstMs: number | null = null;
  #nextMs: number | null = null;

  /** null: nothing was fetched from there yet. */
  get cost(): Cost | null {
    const [firstMs, nextMs] = [this.#firstMs, this.#nextMs];
    return firstMs === null || nextMs === null ? null : { firstMs, nextMs };
  }

  async find(
    namespace: Buffer,
    keys: Buffer,
    deadlineMs: number,
    purpose?: Purpose,
  ): Promise<readonly Offer[]> {
    const askedMs = nowMs();
    const offers = await this.inner.find(namespace, keys, deadlineMs, purpose);
    this.#firstMs = smoothed(this.#firstMs, nowMs() - askedMs);
    return offers;
  }

  async fetch(namespace: Buffer, window: FetchWindow, options: FetchOptions): Promise<Settled> {
    const askedMs = nowMs();
    const settled = await this.inner.fetch(namespace, window, options);
    const came = settled.statuses.reduce((sum, of) => sum + Number(of === Status.ACCEPTED), 0);
    if (came > 0) {
      const beyondMs = Math.max(0, nowMs() - askedMs - (this.#firstMs ?? 0));
      this.#nextMs = smoothed(this.#nextMs, beyondMs / came);
    }
    return settled;
  }

  /** Does nothing: the tiers close the bucket. */
  close(): void {}
}

function smoothed(known: number | null, now: number): number {
  return known === null ? now : known + TIER_COST_SMOOTHING * (now - known);
}

/** All calls go to the first place; look-ups go on to the bucket with what is missing, and saves with what was new there. */
export class Tiers extends Forwarding<BlockStore> implements BlockStore {
  readonly #bucket: BlockStore;
  readonly #far: Far;
  readonly #logger: Logger;
  readonly lanes?: string;
  readonly learnModel?: NonNullable<BlockStore["learnModel"]>;
  readonly nameModel?: NonNullable<BlockStore["nameModel"]>;
  readonly watch?: NonNullable<BlockStore["watch"]>;
  readonly stats?: NonNullable<BlockStore["stats"]>;
  readonly nodes?: NonNullable<BlockStore["nodes"]>;
  readonly keep?: NonNullable<BlockStore["keep"]>;
  readonly sessions?: NonNullable<BlockStore["sessions"]>;
  readonly collect?: NonNullable<BlockStore["collect"]>;
  /** Counts of the first place; the bucket has its own (`behind`). */
  readonly counts?: NonNullable<BlockStore["counts"]>;

  constructor(near: BlockStore, bucket: BlockStore, logger: Logger) {
    super(near);
    this.#bucket = bucket;
    this.#far = new Far(bucket);
    this.#logger = logger;
    const { learnModel, nameModel, watch, stats, nodes, keep, sessions, collect, counts } = near;
    if (learnModel !== undefined) this.learnModel = learnModel.bind(near);
    if (nameModel !== undefined) this.nameModel = nameModel.bind(near);
    if (watch !== undefined) this.watch = watch.bind(near);
    if (stats !== undefined) this.stats = stats.bind(near);
    if (nodes !== undefined) this.nodes = nodes.bind(near);
    if (keep !== undefined) this.keep = keep.bind(near);
    if (sessions !== undefined) this.sessions = sessions.bind(near);
    if (collect !== undefined) this.collect = collect.bind(near);
    if (counts !== undefined) this.counts = counts.bind(near);
    if ("lanes" in near)
      Object.defineProperty(this, "lanes", { enumerable: true, get: () => near.lanes });
  }

  /** The first place's, else the bucket's, which costs no restore from the first. */
  override get trouble(): string {
    if (this.inner.trouble !== "" || this.#bucket.trouble === "") return this.inner.trouble;
    return `${this.#bucket.address}: ${this.#bucket.trouble}`;
  }

  /** False while one of both answers: what is held can be restored. Saves ask for `refusal`. */
  override get isDown(): boolean {
    return this.inner.isDown && this.#bucket.isDown;
  }

  get behind(): BlockStore {
    return this.#bucket;
  }

  get up(): Goodput {
    return this.inner.up;
  }

  get refusal(): Refusal | null {
    return this.inner.refusal;
  }

  get capacityBytes(): number | null {
    return this.inner.capacityBytes;
  }

  get isDraining(): boolean {
    return this.inner.isDraining;
  }

  get flushes(): FlushFeed {
    return this.inner.flushes;
  }

  /**
   * Asks the first place, and for a request the bucket for what is missing there, which is everything while the first place
   * does not answer. Where the bucket does not answer, it has nothing. Audits and offers repeat, and each request to a bucket
   * has a price.
   */
  async find(
    namespace: Buffer,
    keys: Buffer,
    deadlineMs: number,
    purpose: Purpose = OF_A_REQUEST,
  ): Promise<readonly Offer[]> {
    const untilMs = nowMs() + deadlineMs;
    const [near, failure] = await this.#near(namespace, keys, deadlineMs, purpose);
    const leftMs = untilMs - nowMs();
    const isAsked = purpose.isCounted && near.length <= 1 && !this.#far.isDown && leftMs >= 1;
    const far = isAsked ? await this.#missing(near, namespace, keys, leftMs, purpose) : null;
    // Why the first place did not answer says more than that the bucket has nothing.
    if (failure !== null && (far === null || countBits(far.keys, keyCount(keys)) === 0))
      throw failure;
    return far === null ? near : [...near, far];
  }

  /** Returns what the first place offers, its own archive included; where it does not answer, nothing and why. */
  async #near(
    namespace: Buffer,
    keys: Buffer,
    deadlineMs: number,
    purpose: Purpose,
  ): Promise<[readonly Offer[], TierkvError | null]> {
    try {
      const offers = await this.inner.find(namespace, keys, deadlineMs, purpose);
      const ours = (offer: Offer): Offer =>
        offer.source === this.inner ? { ...offer, source: this } : offer;
      return [offers.map(ours), null];
    } catch (error) {
      return [[], toTierkvError(error)];
    }
  }

  /** Asks the bucket for what is not offered; null: that is too little, or the bucket does not answer. */
  async #missing(
    near: readonly Offer[],
    namespace: Buffer,
    keys: Buffer,
    leftMs: number,
    purpose: Purpose,
  ): Promise<Offer | null> {
    const count = keyCount(keys);
    const isHeld = (at: number): boolean => near.some((offer) => hasBit(offer.keys, at));
    const missing = [...Array(count).keys()].filter((at) => !isHeld(at));
    if (missing.length < TIER_KEYS_MIN) return null;
    const asked = withRuns(keys, missing);
    try {
      const packed = Buffer.concat(asked.map((at) => keyOf(keys, at)));
      const [found] = await this.#far.find(namespace, packed, leftMs, purpose);
      const bits = newBitmap(count);
      for (const [place, at] of asked.entries())
        if (found !== undefined && hasBit(found.keys, place) && !isHeld(at)) setBit(bits, at);
      return { source: this.#far, keys: bits, cost: this.#far.cost };
    } catch (error) {
      this.#logger.debug({ err: toTierkvError(error) }, "the bucket was not asked");
      return null;
    }
  }

  fetch(namespace: Buffer, window: FetchWindow, options: FetchOptions): Promise<Settled> {
    return this.inner.fetch(namespace, window, options);
  }

  /** Stores in the first place, and what was new there in the bucket, too; a failure of the bucket is the bucket's alone. */
  async store(
    namespace: Buffer,
    items: readonly StoreItem[],
    deadlineMs: number,
    tenant?: number,
    flushed?: number,
    trace?: Buffer | null,
  ): Promise<ItemStatus[]> {
    const untilMs = nowMs() + deadlineMs;
    const statuses = await this.inner.store(namespace, items, deadlineMs, tenant, flushed, trace);
    const isNew = (at: number): boolean =>
      statuses[at] === Status.ACCEPTED || statuses[at] === Status.DURABLE;
    const fresh = items.filter((_item, at) => isNew(at));
    const leftMs = untilMs - nowMs();
    if (fresh.length === 0 || this.#bucket.isDown || leftMs < 1) return statuses;
    try {
      await this.#bucket.store(namespace, fresh, leftMs, tenant);
    } catch (error) {
      this.#logger.debug({ err: toTierkvError(error) }, "records were not copied to the bucket");
    }
    return statuses;
  }

  close(): void {
    this.inner.close();
    this.#bucket.close();
  }
}

const keyOf = (keys: Buffer, at: number): Buffer =>
  keys.subarray(at * PACKED_KEY_BYTES, (at + 1) * PACKED_KEY_BYTES);

/** Numbers of the missing keys, and of the keys before them in their runs, by whose first block a bucket's objects are named. */
function withRuns(keys: Buffer, missing: readonly number[]): number[] {
  const asked = new Set(missing);
  for (const from of missing) {
    const place = keyOf(keys, from).subarray(HASH_BYTES);
    for (let at = from - 1; at >= 0; at -= 1) {
      const key = keyOf(keys, at);
      if (!key.subarray(HASH_BYTES).equals(place)) continue;
      // A run ends with a block whose hash ends with four zero bits (`END_BITS` in crates/cold/src/s3/runs.rs).
      if (asked.has(at) || ((key[HASH_BYTES - 1] ?? 0) & 0xf) === 0) break;
      asked.add(at);
    }
  }
  return [...asked].toSorted((one, other) => one - other);
}
