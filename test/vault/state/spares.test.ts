// Owns the proof that a vault returns unused spare record memory to the system.
import { setImmediate } from "node:timers/promises";
import { afterEach, expect, test, vi } from "vitest";
import { SPARE_TRIM_MS } from "../../../src/base/limits/general.ts";
import { closeStore, createStore, storeFlush, storeStats } from "../../../src/base/native.ts";
import type * as Native from "../../../src/base/native.ts";
import { SpareTrim } from "../../../src/vault/state/spares.ts";
import { storePut } from "../../support/native.ts";
import { makeRecord, NAMESPACE } from "../../support/records.ts";
import { logger } from "../../support/vaults.ts";

const MIB = 2 ** 20;

/** Trims begun so far. */
const trims = vi.hoisted((): Promise<void>[] => []);

vi.mock("../../../src/base/native.ts", async (importOriginal) => {
  const native = await importOriginal<typeof Native>();
  const storeTrim = (store: Native.StoreId): Promise<void> => {
    const trim = native.storeTrim(store);
    trims.push(trim);
    return trim;
  };
  return { ...native, storeTrim };
});

afterEach(() => {
  vi.useRealTimers();
});

test("memory unused for that long is returned, and not before", async () => {
  const store = createStore({ maxBytes: 8 * MIB, maxRecordBytes: MIB, recordClass: 1 });
  for (const index of [1, 2, 3]) {
    const { key, record } = makeRecord(index, { payloadBytes: 900_000 });
    expect(storePut(store, NAMESPACE, key, record)).toBe(1);
  }
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  const trim = new SpareTrim(store, logger);
  await storeFlush(store, 0, null, 0, 0);
  const spare = (): number => storeStats(store).spareBytes;
  expect(spare()).toBeGreaterThan(3 * 900_000);
  const kept = spare();
  for (const [turn, left] of [kept, 0].entries()) {
    vi.advanceTimersByTime(SPARE_TRIM_MS);
    expect(trims).toHaveLength(turn + 1);
    await trims[turn];
    // Lets waiters inside the trim run as well.
    await setImmediate();
    expect(spare(), turn === 0 ? "they have just come" : "nobody took them").toBe(left);
  }
  trim.close();
  closeStore(store);
});
