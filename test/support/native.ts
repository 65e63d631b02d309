// Owns the core's test-only functions, which builds without the feature `test-exports` (packages) lack.
import { readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { toTierkvError } from "../../src/base/errors.ts";
import type { RecordHeader } from "../../src/base/native.ts";

const FOLDER = fileURLToPath(new URL("../../crates/node/", import.meta.url));

/** Fill of the inbox or the outbox. */
interface MemoryStatus {
  records: number;
  bytes: number;
}

/** Functions of crates/node/src/testing.rs. */
interface TestExports {
  /** Records and bytes. */
  inboxStatus: () => [number, number];
  outboxStatus: () => [number, number];
  receiveRecord: (
    arena: number,
    slot: number,
    generation: number,
    geometry: number,
    fidelity: number,
    namespace: Uint8Array,
    packed: Uint8Array,
    record: Uint8Array,
    step: number,
  ) => RecordHeader;
  storePut: (id: number, namespace: Uint8Array, packed: Uint8Array, record: Uint8Array) => number;
  storeTouch: (id: number, namespace: Uint8Array, packed: Uint8Array) => void;
  parseRecordHeader: (bytes: Uint8Array) => RecordHeader;
  verifyRecord: (bytes: Uint8Array) => RecordHeader;
  crc32c: (bytes: Uint8Array) => number;
  retainSlot: (id: number, slot: number, generation: number) => void;
  readSlot: (id: number, slot: number) => Buffer;
  writeSlot: (id: number, slot: number, bytes: Uint8Array) => void;
  corruptRecord: (id: number, namespace: Uint8Array, packed: Uint8Array, offset: number) => void;
}

/** Returns the addon that the product has loaded, because a second load shares its memory. */
function addon(): TestExports {
  const own = readdirSync(FOLDER).find((name) => name.endsWith(".node")) ?? "no addon";
  const path = process.env["NAPI_RS_NATIVE_LIBRARY_PATH"] ?? FOLDER + own;
  return createRequire(import.meta.url)(path) as TestExports;
}

const loaded = addon();

/** Returns the function, throwing coded errors like src/base/native.ts. */
function coded<Name extends keyof TestExports>(name: Name): TestExports[Name] {
  const call = loaded[name] as ((...args: unknown[]) => unknown) | undefined;
  if (call === undefined)
    throw new Error(`the core has no ${name}: run \`npm run build:native:tests\``);
  const guarded = (...args: unknown[]): unknown => {
    try {
      return call(...args);
    } catch (error) {
      throw toTierkvError(error);
    }
  };
  return guarded as TestExports[Name];
}

const inbox = coded("inboxStatus");
const outbox = coded("outboxStatus");

/** Returns the records that are arriving. */
export function inboxStatus(): MemoryStatus {
  const [records, bytes] = inbox();
  return { records, bytes };
}

/** Returns the undropped records, and the bytes of all still in memory. */
export function outboxStatus(): MemoryStatus {
  const [records, bytes] = outbox();
  return { records, bytes };
}

export const receiveRecord: TestExports["receiveRecord"] = coded("receiveRecord");
export const storePut: TestExports["storePut"] = coded("storePut");
export const storeTouch: TestExports["storeTouch"] = coded("storeTouch");
export const parseRecordHeader: TestExports["parseRecordHeader"] = coded("parseRecordHeader");
export const verifyRecord: TestExports["verifyRecord"] = coded("verifyRecord");
export const crc32c: TestExports["crc32c"] = coded("crc32c");
export const retainSlot: TestExports["retainSlot"] = coded("retainSlot");
export const readSlot: TestExports["readSlot"] = coded("readSlot");
export const writeSlot: TestExports["writeSlot"] = coded("writeSlot");
export const corruptRecord: TestExports["corruptRecord"] = coded("corruptRecord");
