// Owns unfinished parity records: which blocks each covers, which members vaults took, and giving up incomplete ones.
import { packKeys, PARITY_GROUP } from "../../base/block.ts";
import type { Namespace, RecordClass } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import { recordKey } from "../../base/key-text.ts";
import {
  PARITY_OPEN_BYTES,
  PARITY_OPEN_MAX,
  PARITY_PARENTS_MAX,
  PART_BLOCKS,
} from "../../base/limits/pool.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import type { StripeId } from "../../base/native.ts";
import { parityAdd, parityClose, parityMake, parityOpen } from "../../base/native.ts";
import type { Takes } from "../../client/flush-feed.ts";
import { OutboxRecord } from "../../codec/record.ts";
import { NO_VAULT } from "../../pool/placement.ts";
import type { SaveItem } from "../socket/messages.ts";
import type { CodecChoice } from "./codec-choice.ts";
import type { ParityDestination } from "./destinations.ts";
import type { Pending } from "./pending.ts";
import type { Destination } from "./store-queue.ts";

/** The origin of members: one group of one rank of one engine. */
interface Source {
  readonly recordClass: RecordClass;
  readonly group: number;
  readonly shard: number;
  readonly shardCount: number;
}

/** An unfinished parity record. */
interface Open {
  readonly key: string;
  /** Its id in the native core. */
  readonly id: StripeId;
  readonly namespace: Namespace;
  readonly source: Source;
  readonly tenant: number;
  destination: Destination;
  /** Members that their owners stored. */
  taken: number;
  bytes: number;
  /** Hashes of the members, by place. */
  readonly hashes: (Buffer | undefined)[];
  /** Prompt tokens up to the end of the last member, whose hash names the record. */
  endTokens: number;
}

export interface Member {
  readonly open: Open;
  readonly parity: ParityDestination;
}

export interface ParityOptions {
  codecs: Pick<CodecChoice, "fidelityOf">;
  counters: SidecarCounters;
  logger: Logger;
  /** Called with the bytes of memory taken, negative when given back. */
  onBytes(bytes: number): void;
}

export class ParityMaker {
  readonly #options: ParityOptions;
  /** Longest without a new member first. */
  readonly #open = new Map<string, Open>();
  #bytes = 0;
  /** By hash of a recent member, the hash of its parent block: the members of a record must form one chain. */
  readonly #parents = new Map<string, Buffer>();

  constructor(options: ParityOptions) {
    this.#options = options;
  }

  /** Enters a block before its record is encoded; null: it is no member. */
  join(source: Source, { item, namespace, parity }: Pending): Member | null {
    if (parity === null || parity.vault === NO_VAULT) return null;
    this.#rememberParent(item);
    const key = keyOf(source, namespace, parity);
    const known = this.#open.get(key);
    const isOther =
      known !== undefined &&
      (known.destination.store !== parity.destination.store ||
        known.tenant !== item.tenant ||
        known.hashes[parity.place] !== undefined);
    // Another prompt with the same beginning, or the same prompt again.
    if (isOther) this.#giveUp(known);
    const isNew = known === undefined || isOther;
    const open = isNew ? this.#begin(key, source, namespace, item.tenant, parity) : known;
    this.#open.delete(key);
    this.#open.set(key, open);
    // A parity record is as old as its oldest member.
    open.destination = {
      ...open.destination,
      flushed: Math.min(open.destination.flushed, parity.destination.flushed),
    };
    open.hashes[parity.place] = item.hash;
    if (parity.place === parity.width - 1) open.endTokens = item.endTokens;
    return { open, parity };
  }

  #rememberParent({ hash, parent }: SaveItem): void {
    const name = hash.toString("latin1");
    this.#parents.delete(name);
    this.#parents.set(name, parent);
    const [oldest] = this.#parents.keys();
    if (this.#parents.size > PARITY_PARENTS_MAX && oldest !== undefined)
      this.#parents.delete(oldest);
  }

  /** Checks that the last member leads back to the first, parent by parent. */
  #isOneChain({ hashes }: Open): boolean {
    let hash = hashes.at(-1);
    for (const member of hashes.slice(0, -1).toReversed()) {
      for (let step = 0; step < PART_BLOCKS && hash !== undefined; step += 1)
        hash = this.#parents.get(hash.toString("latin1"));
      if (hash === undefined || member === undefined || !hash.equals(member)) return false;
    }
    return true;
  }

  #begin(
    key: string,
    source: Source,
    namespace: Namespace,
    tenant: number,
    { width, destination }: ParityDestination,
  ): Open {
    const id = parityOpen(width);
    const hashes: Open["hashes"] = Array.from({ length: width });
    const counts = { taken: 0, bytes: 0, endTokens: 0 };
    const open = { key, id, namespace, source, tenant, destination, hashes, ...counts };
    this.#open.set(key, open);
    if (this.#open.size > PARITY_OPEN_MAX) this.#giveUpOldest();
    return open;
  }

  /** Adds records, each as the member with the same index, before they are dropped. */
  async take(members: readonly (Member | null)[], records: readonly OutboxRecord[]): Promise<void> {
    const pairs = members.flatMap((member, at) => {
      const record = records[at];
      return member === null || record === undefined || !this.#isOpen(member.open)
        ? []
        : [{ member, record }];
    });
    if (pairs.length === 0) return;
    const triple = ({ member: { open, parity }, record }: (typeof pairs)[number]): number[] => [
      open.id,
      parity.place,
      record.id,
    ];
    const sizes = await parityAdd(Uint32Array.from(pairs.flatMap(triple)));
    for (const [at, { member }] of pairs.entries()) {
      const bytes = sizes[at] ?? 0;
      const { open } = member;
      if (!this.#isOpen(open)) continue;
      if (bytes === 0) this.#giveUp(open);
      else this.#grow(open, bytes);
    }
    while (this.#bytes > PARITY_OPEN_BYTES && this.#open.size > 0) this.#giveUpOldest();
  }

  /** Notes whether the owner took a member's bytes; a record stored earlier by another engine may have other bytes. */
  settle(member: Member | null, isTaken: boolean): void {
    if (member === null || !this.#isOpen(member.open)) return;
    const { open, parity } = member;
    open.taken += Number(isTaken);
    const isWhole = open.taken === parity.width;
    if (!isTaken || (isWhole && !this.#isOneChain(open))) this.#giveUp(open);
    if (!isWhole || !this.#isOpen(open)) return;
    this.#finish(open, parity).catch((error: unknown) => {
      this.#options.counters.add("parity_dropped");
      this.#options.logger.debug({ err: toTierkvError(error) }, "a parity record was not made");
    });
  }

  /** Gives up the unfinished records of flushed blocks. */
  flush(recordClass: RecordClass, takes: Takes): void {
    for (const open of this.#open.values()) {
      const { source, namespace, tenant } = open;
      if (source.recordClass === recordClass && takes(namespace, tenant)) this.#giveUp(open);
    }
  }

  async #finish(open: Open, { tokens, anchor }: ParityDestination): Promise<void> {
    const { namespace, tenant, hashes, endTokens, source, bytes } = open;
    const { group, shard, shardCount } = source;
    this.#open.delete(open.key);
    try {
      const blockHash = hashes.at(-1) ?? Buffer.alloc(0);
      const place = { group, shard, shardCount, tokens, namespace, anchor };
      const fidelity = this.#options.codecs.fidelityOf(namespace);
      const made = await parityMake(open.id, { ...place, fidelity, blockHash, endTokens });
      const record = new OutboxRecord(made[0] ?? 0, made[1] ?? 0, null);
      const key = packKeys(blockHash, group | PARITY_GROUP, shard);
      const named = { namespace, tenant, key, endTokens, record, sourceBytes: 0 };
      const { store, flushed } = open.destination;
      const onEnd = (): void => this.#grow({ bytes }, 0);
      store.add([{ ...named, flushed, role: "parity", isCopy: true, onEnd }]);
    } catch (error) {
      this.#grow({ bytes }, 0);
      throw error;
    }
  }

  #isOpen(open: Open): boolean {
    return this.#open.get(open.key) === open;
  }

  #grow(open: Pick<Open, "bytes">, bytes: number): void {
    const more = bytes - open.bytes;
    open.bytes = bytes;
    this.#bytes += more;
    this.#options.onBytes(more);
  }

  #giveUpOldest(): void {
    for (const open of this.#open.values()) {
      this.#giveUp(open);
      return;
    }
  }

  #giveUp(open: Open): void {
    this.#open.delete(open.key);
    this.#grow(open, 0);
    parityClose(open.id);
    this.#options.counters.add("parity_incomplete");
  }
}

/** The anchor names the stripe with the whole chain before it, `last` the place of its last member. */
function keyOf(
  { group, shard }: Source,
  namespace: Namespace,
  { anchor, last }: ParityDestination,
): string {
  return `${recordKey(namespace, packKeys(anchor, group, shard))}${last}`;
}
