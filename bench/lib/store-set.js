// Owns the set of blocks that benches of stores save and restore, with as many calls at a time as a sidecar makes.
import { Arena, SIDECAR_OWNER } from "../../dist/arena/arena.js";
import { ItemStatus, packKeys } from "../../dist/base/block.js";
import { deferSlots, outboxMake, registerGeometry } from "../../dist/base/native.js";
import { becomes } from "../../dist/base/time.js";
import { OutboxRecord } from "../../dist/codec/record.js";
import { chain, digest } from "./blocks.js";

const MIB = 2 ** 20;
export const CALL_MS = 60_000;
export const SET_BYTES = 64 * MIB;
/** As the sidecar fetches and saves: bytes of a call, and calls at the same time. */
export const CALL_BYTES = 8 * MIB;
export const CALLS = 4;
const POLL_MS = 20;
const RAW = 0;
const EXACT = 0;

/** Blocks of one size in an arena, with slots to restore to. */
export class StoreSet {
  /** `bytes`: of a block; `all`: of the set. */
  static async open(bytes, all = SET_BYTES) {
    const set = new StoreSet(bytes, all);
    const isTouched = () => set.arena.status().touchedSlots === set.count;
    if (!(await becomes(isTouched, CALL_MS, POLL_MS))) throw new Error("no memory");
    set.leases = set.arena.lease(SIDECAR_OWNER, set.count);
    return set;
  }

  constructor(bytes, all) {
    this.bytes = bytes;
    this.count = all / bytes;
    this.arena = new Arena({ slotBytes: bytes, slotCount: this.count, dir: null });
    const plain = { dtype: 0, tokens: 16, layers: 1, heads: 0, dimK: 0, dimV: 0 };
    const strides = { keyOffset: 0, valueOffset: 0, headStride: 0, tokenStride: 0 };
    const rest = { group: 0, recordClass: 1, layout: 1, ...plain, ...strides };
    this.geometry = registerGeometry({ ...rest, layerBytes: bytes });
  }

  renew(round) {
    this.namespace = digest(`stores ${this.bytes} ${round}`);
    this.blocks = chain(`round ${round}`, this.count, 16);
    this.keys = this.blocks.map(({ hash }) => packKeys(hash, 0, 0));
  }

  /** Calls `work` on each range of about a call's bytes, a few at a time. */
  async inTurns(work) {
    const step = Math.max(1, Math.floor(CALL_BYTES / this.bytes));
    let next = 0;
    const turns = async () => {
      while (next < this.count) {
        const from = next;
        next = Math.min(this.count, from + step);
        await work(from, next);
      }
    };
    await Promise.all(Array.from({ length: CALLS }, turns));
  }

  save(client) {
    return this.inTurns(async (from, to) => {
      const items = this.deferred(from, to);
      const statuses = await client.store(this.namespace, items, CALL_MS);
      for (const { record } of items) record.drop();
      if (statuses.some((status) => status !== ItemStatus.ACCEPTED)) throw new Error("not stored");
    });
  }

  /** Records that their sender makes from the slots, as a sidecar's are. */
  deferred(from, to) {
    const items = this.blocks.slice(from, to).map(({ hash, parent, endTokens }, index) => ({
      slot: this.leases[(from + index) * 2],
      generation: this.leases[(from + index) * 2 + 1],
      shard: 0,
      shardCount: 1,
      endTokens,
      blockHash: hash,
      parentHash: parent,
    }));
    const pairs = deferSlots(this.arena.id, this.geometry, RAW, EXACT, this.namespace, items);
    const ids = Uint32Array.from(items, (_, index) => pairs[index * 2]);
    const make = () => {
      const lengths = outboxMake(ids);
      return Promise.resolve(new Map([...ids].map((id, index) => [id, lengths[index]])));
    };
    return items.map((_, index) => ({
      key: this.keys[from + index],
      record: new OutboxRecord(ids[index], pairs[index * 2 + 1], make),
    }));
  }

  restore(client) {
    return this.inTurns(async (from, to) => {
      const window = {
        arena: this.arena.id,
        fidelity: 0,
        keys: Buffer.concat(this.keys.slice(from, to)),
        geometries: new Uint32Array(to - from).fill(this.geometry),
        leases: this.leases.subarray(from * 2, to * 2),
      };
      const { statuses } = await client.fetch(this.namespace, window, { deadlineMs: CALL_MS });
      if (statuses.some((status) => status !== ItemStatus.ACCEPTED))
        throw new Error("not restored");
    });
  }

  close() {
    this.arena.close();
  }
}
