// Owns the proof that the built addon makes the golden records and takes them, as Rust and Python do; what is refused is refused by the same Rust.
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { encodeSlots, outboxDrop, outboxView, registerGeometry } from "../../src/base/native.ts";
import type { Geometry, RecordHeader } from "../../src/base/native.ts";
import { readSlot, receiveRecord, writeSlot } from "../support/native.ts";
import { leaseOne, withArena } from "../support/slots.ts";

type HeaderJson = Omit<RecordHeader, "namespace" | "blockHash" | "parentHash"> &
  Record<"namespace" | "blockHash" | "parentHash", string>;

interface Manifest {
  records: {
    record: string;
    page: string;
    /** The page that comes of the record: another one where the codec is lossy. */
    decoded: string;
    header: HeaderJson;
    geometry: Geometry;
  }[];
}

const read = (name: string): Buffer => readFileSync(new URL(`../vectors/${name}`, import.meta.url));

const manifest = JSON.parse(read("manifest.json").toString()) as Manifest;

function wanted(json: HeaderJson): RecordHeader {
  const hash = (hex: string): Buffer => Buffer.from(hex, "hex");
  return {
    ...json,
    namespace: hash(json.namespace),
    blockHash: hash(json.blockHash),
    parentHash: hash(json.parentHash),
  };
}

function packedKey({ blockHash, group, shard }: RecordHeader): Buffer {
  const place = Buffer.alloc(4);
  place.writeUInt16LE(group, 0);
  place.writeUInt16LE(shard, 2);
  return Buffer.concat([blockHash, place]);
}

test.each(manifest.records)("$page becomes $record and comes back", async (golden) => {
  const { namespace, blockHash, parentHash, ...header } = wanted(golden.header);
  const geometry = registerGeometry(golden.geometry);
  const page = read(golden.page);
  const decoded = read(golden.decoded);
  const record = read(golden.record);
  await withArena({ slotBytes: 16_384, slotCount: 2 }, (arena) => {
    const source = leaseOne(arena);
    writeSlot(arena, source.slot, page);
    const item = { ...source, ...header, blockHash, parentHash };
    const { codec, fidelity } = header;
    const [id = 0, bytes] = encodeSlots(arena, geometry, codec, fidelity, namespace, [item]);
    expect(bytes).toBe(record.length);
    expect(outboxView(id).equals(record)).toBe(true);
    outboxDrop(id);

    const { slot, generation } = leaseOne(arena);
    writeSlot(arena, slot, Buffer.alloc(decoded.length, 0xee));
    const key = packedKey(wanted(golden.header));
    const place = [arena, slot, generation, geometry, fidelity, namespace] as const;
    expect(receiveRecord(...place, key, record, 100)).toEqual(wanted(golden.header));
    const restored = readSlot(arena, slot);
    const changed = decoded.filter((byte, at) => restored[at] !== byte && restored[at] !== 0xee);
    expect(changed, "every byte is the page's, or padding that was left alone").toHaveLength(0);
    const padding = decoded.length - header.sourceBytes;
    const left = decoded.filter((byte, at) => restored[at] === 0xee && byte !== 0xee).length;
    expect(left).toBeLessThanOrEqual(padding);
  });
});
