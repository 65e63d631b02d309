// Owns the rows that a vault lists of its records, and the first block of the run by which each is placed.
import { HASH_BYTES, PACKED_KEY_BYTES } from "../base/block.ts";
import { STORE_TIMEOUT_MS } from "../base/limits/general.ts";
import { DRAIN_RECORDS_MAX, RUN_BLOCKS } from "../base/limits/pool.ts";
import { outboxPosition } from "../base/native.ts";
import type { SessionName, VaultClient } from "../client/vault/vault-client.ts";

/** One listed record. */
export interface Row {
  key: Buffer;
  parent: Buffer;
  /** Number of the block in its prompt. */
  number: number;
  tenant: number;
  bytes: number;
}

const ROW_BYTES = PACKED_KEY_BYTES + HASH_BYTES + 16;
export const UNKNOWN = 0xffff_ffff;

/** The first block of each run, found by following parents. */
export class Anchors {
  readonly #parents = new Map<string, Buffer>();
  /** Result for each visited block, at which later walks stop. */
  readonly #known = new Map<string, Buffer | null>();

  constructor(rows: readonly Row[]) {
    for (const row of rows) this.#parents.set(placeOf(row.number, hashOf(row)), row.parent);
  }

  /** Returns the hash of the run's first block; null: a block between is gone, so no restore can reach this one. */
  of(row: Row): Buffer | null {
    if (row.number === UNKNOWN) return null;
    const passed: string[] = [];
    let hash: Buffer | null = hashOf(row);
    for (let { number } = row; number % RUN_BLOCKS > 0 && hash !== null; number -= 1) {
      const place = placeOf(number, hash);
      const known = this.#known.get(place);
      if (known !== undefined) {
        hash = known;
        break;
      }
      passed.push(place);
      hash = this.#parents.get(place) ?? null;
    }
    for (const place of passed) this.#known.set(place, hash);
    return hash;
  }
}

/** Key of a block: its number and hash; groups of equal block length share hashes. */
function placeOf(number: number, hash: Buffer): string {
  return `${number}:${hash.toString("latin1")}`;
}

export function hashOf({ key }: Row): Buffer {
  return key.subarray(0, HASH_BYTES);
}

/** Fills in the position that an opened record carries; without one the row stays unknown. */
export function learnFrom(row: Row | undefined, record: number): void {
  const said = outboxPosition(record);
  if (row === undefined || said === null) return;
  row.parent = said.subarray(0, HASH_BYTES);
  row.number = said.readUInt32LE(HASH_BYTES);
}

/** Rows of one namespace. */
export interface Held {
  namespace: Buffer;
  /** Model name; empty: the vault does not know it. */
  model: string;
  rows: Row[];
}

/** Lists the records of a vault, or of one session there, namespace by namespace. */
export async function* pagesOf(source: VaultClient, of?: SessionName): AsyncGenerator<Held> {
  let after: Buffer = Buffer.alloc(0);
  let [namespace, model, rows]: [Buffer, string, Row[]] = [after, "", []];
  do {
    const page = await source.list(after, STORE_TIMEOUT_MS, of);
    const isOther = !page.namespace.equals(namespace) || rows.length >= DRAIN_RECORDS_MAX;
    if (isOther && rows.length > 0) {
      yield { namespace, model, rows };
      rows = [];
    }
    ({ namespace, model, last: after } = page);
    rows.push(...rowsOf(page.rows));
  } while (after.length > 0);
  if (rows.length > 0) yield { namespace, model, rows };
}

/** Packs rows for `rowsOf`. */
export function packRows(rows: readonly Row[]): Buffer {
  const each = rows.map(({ key, parent, number, tenant, bytes }) => {
    const place = Buffer.alloc(16);
    place.writeUInt32LE(number);
    place.writeUInt32LE(tenant, 4);
    place.writeBigUInt64LE(BigInt(bytes), 8);
    return [key, parent, place];
  });
  return Buffer.concat(each.flat());
}

export function rowsOf(packed: Buffer): Row[] {
  return Array.from({ length: packed.length / ROW_BYTES }, (_none, index) => {
    const row = packed.subarray(index * ROW_BYTES, (index + 1) * ROW_BYTES);
    const at = PACKED_KEY_BYTES + HASH_BYTES;
    return {
      key: row.subarray(0, PACKED_KEY_BYTES),
      parent: row.subarray(PACKED_KEY_BYTES, at),
      number: row.readUInt32LE(at),
      tenant: row.readUInt32LE(at + 4),
      bytes: Number(row.readBigUInt64LE(at + 8)),
    };
  });
}
