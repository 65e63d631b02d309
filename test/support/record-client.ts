// Owns a test client that stores and fetches whole records as bytes, over lanes like any other client.
import { Arena, SIDECAR_OWNER } from "../../src/arena/arena.ts";
import { ItemStatus, keyAt, keyCount } from "../../src/base/block.ts";
import { MADE_NOW } from "../../src/base/limits/general.ts";
import type { GeometryId } from "../../src/base/native.ts";
import { dropGeometry, outboxPut } from "../../src/base/native.ts";
import { sleep } from "../../src/base/time.ts";
import { VaultClient } from "../../src/client/vault/vault-client.ts";
import { OutboxRecord } from "../../src/codec/record.ts";
import { parseRecordHeader, readSlot } from "./native.ts";
import { headerOf } from "./records.ts";
import type { TestRecord } from "./records.ts";
import { registerOpaque } from "./slots.ts";

const PAGE = 4096;

/** Result of a fetch, item by item. */
export class Fetched {
  readonly records = new Map<number, Buffer>();
  /** Items that did not come, with their status. */
  readonly missed = new Map<number, ItemStatus>();
}

export class TestClient extends VaultClient {
  /** Offers records, sound or not. */
  async put(
    namespace: Buffer,
    records: readonly TestRecord[],
    deadlineMs: number,
    tenant = 0,
    flushed: number = MADE_NOW,
  ): Promise<ItemStatus[]> {
    const items = records.map(({ key, record }) => ({
      key,
      record: new OutboxRecord(outboxPut(record), record.length, null),
    }));
    try {
      return await this.store(namespace, items, deadlineMs, tenant, flushed);
    } finally {
      for (const { record } of items) record.drop();
    }
  }

  /** Fetches records of this process's `makeRecord`: payloads as received, headers as verified. */
  async take(namespace: Buffer, keys: Buffer, deadlineMs: number): Promise<Fetched> {
    const count = keyCount(keys);
    const fetched = new Fetched();
    if (count === 0) return fetched;
    const headers = Array.from({ length: count }, (_, item) =>
      headerOf(namespace, keyAt(keys, item)),
    );
    const shapes = headers.map((header) => shapeOf(header));
    const geometries = shapes.map(({ geometry }) => geometry);
    const slotBytes = Math.ceil(Math.max(...shapes.map(({ bytes }) => bytes)) / PAGE) * PAGE;
    const arena = new Arena({ slotBytes, slotCount: count, dir: null });
    try {
      while (arena.status().touchedSlots < count) await sleep(1);
      const leases = arena.lease(SIDECAR_OWNER, count);
      const plan = {
        arena: arena.id,
        fidelity: 0,
        keys,
        geometries: Uint32Array.from(geometries),
        leases,
      };
      const { statuses } = await this.fetch(namespace, plan, { deadlineMs });
      for (const [item, status] of statuses.entries()) {
        const header = headers[item];
        if (status !== ItemStatus.ACCEPTED || header === null || header === undefined) {
          fetched.missed.set(item, status as ItemStatus);
          continue;
        }
        const payload = readSlot(arena.id, leases[item * 2] ?? 0).subarray(0, shapes[item]?.bytes);
        fetched.records.set(item, Buffer.concat([header, payload]));
      }
      return fetched;
    } finally {
      arena.close();
      for (const geometry of geometries) dropGeometry(geometry);
    }
  }
}

/** Returns any shape for records that nobody made. */
function shapeOf(header: Buffer | null): { geometry: GeometryId; bytes: number } {
  const parsed = header === null ? null : parseRecordHeader(header);
  const bytes = parsed?.payloadBytes ?? PAGE;
  const geometry = registerOpaque(bytes, {
    group: parsed?.group ?? 0,
    recordClass: parsed?.recordClass ?? 1,
    tokens: parsed?.tokens ?? 16,
  });
  return { geometry, bytes };
}
