// Owns the border to the native core: the only file that imports '#core'; gives its functions types and its errors codes.
import type { RecordClassNumber } from "./block.ts";
import { TierkvError, toTierkvError } from "./errors.ts";

// Names and order are those of crates/node. Byte counts are numbers (exact below 2^53); absent is null.

export interface CoreInfo {
  version: string;
  recordVersion: number;
  headerBytes: number;
  crc32c: string;
  isa: string;
}

/** A record's header; docs/protocol.md section 1 says what each field means. */
export interface RecordHeader {
  codec: number;
  recordClass: number;
  fidelity: number;
  layout: number;
  group: number;
  shard: number;
  shardCount: number;
  dtype: number;
  parts: number;
  tokens: number;
  layers: number;
  heads: number;
  dimK: number;
  dimV: number;
  endTokens: number;
  payloadBytes: number;
  sourceBytes: number;
  namespace: Buffer;
  blockHash: Buffer;
  parentHash: Buffer;
}

export interface ArenaOptions {
  slotBytes: number;
  slotCount: number;
  /** null: a sealed memfd. */
  dir: string | null;
}

export interface Arena {
  id: number;
  path: string;
  bytes: number;
}

export interface ArenaStatus {
  slotBytes: number;
  slotCount: number;
  touchedSlots: number;
  freeSlots: number;
  leasedSlots: number;
  failed: string | null;
}

/** How one KV-cache group lies in a slot, with the numeric codes of the record header; offsets and strides in bytes. */
export interface Geometry {
  group: number;
  recordClass: number;
  layout: number;
  dtype: number;
  tokens: number;
  layers: number;
  heads: number;
  dimK: number;
  dimV: number;
  layerBytes: number;
  keyOffset: number;
  valueOffset: number;
  headStride: number;
  tokenStride: number;
}

export interface GeometryInfo {
  slotBytes: number;
  sourceBytes: number;
  recordBytesMax: number;
}

export interface EncodeItem {
  slot: number;
  generation: number;
  shard: number;
  shardCount: number;
  endTokens: number;
  blockHash: Buffer;
  parentHash: Buffer;
}

export interface StoreOptions {
  maxBytes: number;
  maxRecordBytes: number;
  recordClass: RecordClassNumber;
}

export interface StoreReservations {
  /** One per key; 0 = not wanted. */
  reservations: Uint32Array;
  /** ItemStatus numbers, one per key. */
  statuses: Uint8Array;
}

export interface StoreStats {
  maxBytes: number;
  usedBytes: number;
  reservedBytes: number;
  records: number;
  namespaces: number;
  inserted: number;
  evicted: number;
  evictedBytes: number;
  quarantined: number;
}

interface Core {
  coreInfo(): CoreInfo;

  parseRecordHeader(bytes: Buffer): RecordHeader;
  verifyRecord(bytes: Buffer): RecordHeader;
  writeRecord(header: RecordHeader, payload: Buffer): Buffer;
  crc32c(bytes: Buffer): number;

  createArena(options: ArenaOptions): Arena;
  prefaultArena(arena: number): void;
  arenaStatus(arena: number): ArenaStatus;
  leaseSlots(arena: number, owner: number, count: number): Uint32Array;
  retainSlot(arena: number, slot: number, generation: number): void;
  releaseSlot(arena: number, slot: number, generation: number): boolean;
  chownSlot(arena: number, slot: number, generation: number, owner: number): void;
  releaseOwner(arena: number, owner: number): number;
  closeArena(arena: number): void;
  sweepArenaDir(dir: string): number;
  testReadSlot(arena: number, slot: number): Buffer;
  testWriteSlot(arena: number, slot: number, bytes: Buffer): void;

  registerGeometry(geometry: Geometry): number;
  geometryInfo(geometry: number): GeometryInfo;
  dropGeometry(geometry: number): void;
  encodeSlots(
    arena: number,
    geometry: number,
    codec: number,
    fidelity: number,
    namespace: Buffer,
    items: EncodeItem[],
  ): Float64Array;
  outboxView(record: number): Buffer;
  outboxDrop(record: number): void;
  outboxStatus(): { records: number; bytes: number };
  openInbox(
    arena: number,
    slot: number,
    generation: number,
    geometry: number,
    fidelity: number,
    namespace: Buffer,
    packedKey: Buffer,
    recordBytes: number,
  ): number;
  inboxWrite(inbox: number, offset: number, data: Buffer): boolean;
  inboxFinish(inbox: number): RecordHeader;
  inboxAbort(inbox: number): void;
  inboxStatus(): { open: number; bytes: number };

  createStore(options: StoreOptions): number;
  storeLookup(store: number, namespace: Buffer, keys: Buffer): Buffer;
  storeReserve(
    store: number,
    namespace: Buffer,
    keys: Buffer,
    recordBytes: Float64Array,
  ): StoreReservations;
  storeWrite(reservation: number, offset: number, data: Buffer): boolean;
  storeCommit(reservation: number): number;
  storeAbort(reservation: number): void;
  storePin(store: number, namespace: Buffer, keys: Buffer): Float64Array;
  pinSlice(pin: number, offset: number, length: number): Buffer;
  unpin(pin: number): void;
  storeRecheck(store: number, namespace: Buffer, keys: Buffer): Uint8Array;
  storeFlush(store: number, namespace: Buffer | null): { records: number; bytes: number };
  storeStats(store: number): StoreStats;
  closeStore(store: number): void;
  testCorruptRecord(store: number, namespace: Buffer, packedKey: Buffer, offset: number): void;
}

// A variable, so that this file type-checks before the core is built; loadCore says what to do about it.
const CORE: string = "#core";

async function loadCore(): Promise<Core> {
  try {
    return (await import(CORE)) as Core;
  } catch (error) {
    const reason = toTierkvError(error).message;
    throw new TierkvError("CORE_MISSING", { reason }, { cause: error });
  }
}

const core = await loadCore();

/** The native function of that name, throwing coded errors instead of napi's. */
function native<Name extends keyof Core>(name: Name): Core[Name] {
  const call = (...args: unknown[]): unknown => {
    try {
      return (core[name] as (...args: unknown[]) => unknown)(...args);
    } catch (error) {
      throw toTierkvError(error);
    }
  };
  return call as Core[Name];
}

export const coreInfo: Core["coreInfo"] = native("coreInfo");

export const parseRecordHeader: Core["parseRecordHeader"] = native("parseRecordHeader");
export const verifyRecord: Core["verifyRecord"] = native("verifyRecord");
export const writeRecord: Core["writeRecord"] = native("writeRecord");
export const crc32c: Core["crc32c"] = native("crc32c");

export const createArena: Core["createArena"] = native("createArena");
export const prefaultArena: Core["prefaultArena"] = native("prefaultArena");
export const arenaStatus: Core["arenaStatus"] = native("arenaStatus");
export const leaseSlots: Core["leaseSlots"] = native("leaseSlots");
export const retainSlot: Core["retainSlot"] = native("retainSlot");
export const releaseSlot: Core["releaseSlot"] = native("releaseSlot");
export const chownSlot: Core["chownSlot"] = native("chownSlot");
export const releaseOwner: Core["releaseOwner"] = native("releaseOwner");
export const closeArena: Core["closeArena"] = native("closeArena");
export const sweepArenaDir: Core["sweepArenaDir"] = native("sweepArenaDir");
export const testReadSlot: Core["testReadSlot"] = native("testReadSlot");
export const testWriteSlot: Core["testWriteSlot"] = native("testWriteSlot");

export const registerGeometry: Core["registerGeometry"] = native("registerGeometry");
export const geometryInfo: Core["geometryInfo"] = native("geometryInfo");
export const dropGeometry: Core["dropGeometry"] = native("dropGeometry");
export const encodeSlots: Core["encodeSlots"] = native("encodeSlots");
export const outboxView: Core["outboxView"] = native("outboxView");
export const outboxDrop: Core["outboxDrop"] = native("outboxDrop");
export const outboxStatus: Core["outboxStatus"] = native("outboxStatus");
export const openInbox: Core["openInbox"] = native("openInbox");
export const inboxWrite: Core["inboxWrite"] = native("inboxWrite");
export const inboxFinish: Core["inboxFinish"] = native("inboxFinish");
export const inboxAbort: Core["inboxAbort"] = native("inboxAbort");
export const inboxStatus: Core["inboxStatus"] = native("inboxStatus");

export const createStore: Core["createStore"] = native("createStore");
export const storeLookup: Core["storeLookup"] = native("storeLookup");
export const storeReserve: Core["storeReserve"] = native("storeReserve");
export const storeWrite: Core["storeWrite"] = native("storeWrite");
export const storeCommit: Core["storeCommit"] = native("storeCommit");
export const storeAbort: Core["storeAbort"] = native("storeAbort");
export const storePin: Core["storePin"] = native("storePin");
export const pinSlice: Core["pinSlice"] = native("pinSlice");
export const unpin: Core["unpin"] = native("unpin");
export const storeRecheck: Core["storeRecheck"] = native("storeRecheck");
export const storeFlush: Core["storeFlush"] = native("storeFlush");
export const storeStats: Core["storeStats"] = native("storeStats");
export const closeStore: Core["closeStore"] = native("closeStore");
export const testCorruptRecord: Core["testCorruptRecord"] = native("testCorruptRecord");
