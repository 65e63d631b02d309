// Owns the set of blocks that benches of stores save and restore, with as many calls at a time as a sidecar makes.
import { Arena, SIDECAR_OWNER } from "../../dist/arena/arena.js";
import { ItemStatus } from "../../dist/base/block.js";
import { registerGeometry } from "../../dist/base/native.js";
import { becomes } from "../../dist/base/time.js";
import { digest, records, storeAll } from "./blocks.js";

const MIB = 2 ** 20;
export const CALL_MS = 60_000;
export const SET_BYTES = 64 * MIB;
/** As the sidecar fetches and saves: bytes of a call, and calls at the same time. */
export const CALL_BYTES = 8 * MIB;
export const CALLS = 4;
const POLL_MS = 20;

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
    this.items = records(this.namespace, `round ${round}`, this.count, this.bytes);
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
    return this.inTurns((from, to) =>
      storeAll(client, this.namespace, this.items.slice(from, to), CALL_MS),
    );
  }

  restore(client) {
    return this.inTurns(async (from, to) => {
      const window = {
        arena: this.arena.id,
        fidelity: 0,
        keys: Buffer.concat(this.items.slice(from, to).map(({ key }) => key)),
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
