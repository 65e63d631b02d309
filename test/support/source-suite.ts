// Owns the conformance suite of the seam: what every source and destination of blocks must do, whatever lies behind it.
import { describe, expect, test } from "vitest";
import { hasBit, ItemStatus, keyAt, keyCount, newBitmap, setBit } from "../../src/base/block.ts";
import { KEYS_MAX } from "../../src/base/limits/general.ts";
import { UNCOUNTED } from "../../src/client/source.ts";
import type { BlockStore } from "../../src/client/source.ts";
import { offered } from "../../src/client/vault/found.ts";
import { Pages } from "./lanes.ts";
import { NAMESPACE, noise, OTHER_NAMESPACE } from "./records.ts";
import { SOON_MS, until } from "./vaults.ts";

/** A peer for one test, closed after it. */
export interface Opened {
  store: BlockStore;
  /** Damages the payload of every stored record where it lies; left out: the test of damage is skipped. */
  damage?(): void | Promise<void>;
  /** Makes the peer silent: it takes calls and answers none; left out: the tests of silence are skipped. */
  freeze?(): void | Promise<void>;
  /** Ends the peer; left out: the test of a dead peer is skipped. */
  kill?(): void | Promise<void>;
}

const { ACCEPTED, BAD_RECORD, DURABLE, MISSING, PRESENT } = ItemStatus;
/** Time after which a call to a silent peer must end. */
const SHORT_MS = 300;
/** Length of a page, unless a peer treats longer ones in another way. */
const PAGE_BYTES = 4096;

/** Runs the suite on what `open` makes, with pages of `PAGE` bytes. */
export function describeStore(
  what: string,
  open: () => Promise<Opened>,
  PAGE: number = PAGE_BYTES,
): void {
  const find = async (store: BlockStore, keys: Buffer, namespace = NAMESPACE): Promise<Buffer> =>
    offered(await store.find(namespace, keys, SOON_MS), keyCount(keys));
  const isTaken = (status: ItemStatus): boolean => status === ACCEPTED || status === DURABLE;

  describe(what, () => {
    test("offers nothing before anything is stored, and none of its offers share a key", async () => {
      const { store } = await open();
      const { keys } = await Pages.open(9, PAGE);
      expect([...(await find(store, keys))]).toEqual([0, 0]);
    });

    test("offers exactly what was stored, under its namespace alone, and takes a record once", async () => {
      const { store } = await open();
      const pages = await Pages.open(10, PAGE);
      const items = pages.encode().filter((_item, index) => index % 3 === 0);
      expect((await store.store(NAMESPACE, items, SOON_MS)).every(isTaken)).toBe(true);
      const expected = newBitmap(10);
      for (const index of [0, 3, 6, 9]) setBit(expected, index);
      expect(await find(store, pages.keys)).toEqual(expected);
      expect(await find(store, pages.keys, OTHER_NAMESPACE)).toEqual(newBitmap(10));
      expect(await store.store(NAMESPACE, items, SOON_MS)).toEqual(items.map(() => PRESENT));
    });

    test("fetches what it offers bit-equal into leased slots; what it lacks is MISSING and its slot unwritten", async () => {
      const { store } = await open();
      const pages = await Pages.open(7, PAGE);
      const stored = pages.encode().filter((_item, index) => index !== 4);
      await store.store(NAMESPACE, stored, SOON_MS);
      const options = { deadlineMs: SOON_MS, stallMs: SOON_MS };
      const { statuses, bytes, reason } = await store.fetch(NAMESPACE, pages.plan(), options);
      const expected = [0, 1, 2, 3, 4, 5, 6].map((index) => (index === 4 ? MISSING : ACCEPTED));
      expect([[...statuses], reason]).toEqual([expected, null]);
      expect(bytes).toBeGreaterThan(0);
      for (let index = 0; index < 7; index += 1) {
        const page = index === 4 ? Buffer.alloc(PAGE) : noise(PAGE, index);
        expect(pages.fetched(index).equals(page)).toBe(true);
      }
    });

    test("answers for more keys than one call carries, each at its own bit", async () => {
      const { store } = await open();
      const pages = await Pages.open(2, PAGE);
      await store.store(NAMESPACE, pages.encode(), SOON_MS);
      const count = KEYS_MAX + 9;
      const keys = Buffer.alloc(count * 36, 7);
      for (let index = 0; index < count; index += 1) keys.writeUInt32LE(index, index * 36);
      const at = [0, 1000, count - 1];
      for (const [item, index] of at.entries()) keyAt(pages.keys, item % 2).copy(keys, index * 36);
      const held = await find(store, keys);
      expect([...Array(count).keys()].filter((index) => hasBit(held, index))).toEqual(at);
    });

    test("every offer names a source whose fetch brings it, and no two offers share a key", async () => {
      const { store } = await open();
      const pages = await Pages.open(4, PAGE);
      await store.store(NAMESPACE, pages.encode(), SOON_MS);
      const offers = await store.find(NAMESPACE, pages.keys, SOON_MS, UNCOUNTED);
      const seen = newBitmap(4);
      for (const { source, keys, cost } of offers) {
        for (let index = 0; index < 4; index += 1) {
          if (!hasBit(keys, index)) continue;
          expect(hasBit(seen, index)).toBe(false);
          setBit(seen, index);
        }
        if (cost !== null) expect(Math.min(cost.firstMs, cost.nextMs)).toBeGreaterThanOrEqual(0);
        const { statuses } = await source.fetch(NAMESPACE, pages.plan(), { deadlineMs: SOON_MS });
        for (const [index, status] of statuses.entries())
          if (hasBit(keys, index)) expect(status).toBe(ACCEPTED);
      }
      expect([...seen]).toEqual([0b1111]);
    });

    test("a call whose signal has fired is CANCELLED and writes no slot", async () => {
      const { store } = await open();
      const pages = await Pages.open(1, PAGE);
      await store.store(NAMESPACE, pages.encode(), SOON_MS);
      const options = { deadlineMs: SOON_MS, stallMs: SOON_MS, signal: AbortSignal.abort() };
      const fetching = store.fetch(NAMESPACE, pages.plan(), options);
      await expect(fetching).rejects.toMatchObject({ code: "CANCELLED" });
      expect(pages.fetched(0)).toEqual(Buffer.alloc(PAGE));
    });

    test("once closed it refuses every call as CLOSED; closing again does nothing", async () => {
      const { store } = await open();
      const pages = await Pages.open(1, PAGE);
      store.close();
      store.close();
      const closed = { code: "CLOSED" };
      await expect(store.find(NAMESPACE, pages.keys, SOON_MS)).rejects.toMatchObject(closed);
      const fetching = store.fetch(NAMESPACE, pages.plan(), { deadlineMs: SOON_MS });
      await expect(fetching).rejects.toMatchObject(closed);
      const storing = store.store(NAMESPACE, pages.encode(), SOON_MS);
      await expect(storing).rejects.toMatchObject(closed);
    });

    test("a damaged record is BAD_RECORD with a reason, and one reported is not offered again", async ({
      skip,
    }) => {
      const { store, damage = skip } = await open();
      const pages = await Pages.open(1, PAGE);
      await store.store(NAMESPACE, pages.encode(), SOON_MS);
      await damage();
      const options = { deadlineMs: SOON_MS, stallMs: SOON_MS };
      const { statuses, reason } = await store.fetch(NAMESPACE, pages.plan(), options);
      expect([...statuses]).toEqual([BAD_RECORD]);
      expect(reason).toEqual(expect.stringMatching(/./));
      await store.report(NAMESPACE, pages.keys, reason ?? "", SOON_MS);
      await until(
        async () => !hasBit(await find(store, pages.keys), 0),
        "the record to be dropped",
      );
    });

    test("a silent peer ends every call at its deadline, and a fetch once it has stalled", async ({
      skip,
    }) => {
      const { store, freeze = skip } = await open();
      const pages = await Pages.open(1, PAGE);
      await store.store(NAMESPACE, pages.encode(), SOON_MS);
      await freeze();
      const late = { code: "VAULT_DEADLINE" };
      const stalling = { deadlineMs: SOON_MS, stallMs: SHORT_MS };
      await expect(store.fetch(NAMESPACE, pages.plan(), stalling)).rejects.toMatchObject({
        code: "FETCH_STALLED",
      });
      await expect(store.find(NAMESPACE, pages.keys, SHORT_MS)).rejects.toMatchObject(late);
      expect(pages.fetched(0)).toEqual(Buffer.alloc(PAGE));
    });

    test("a dead peer counts as down with its reason; its calls then fail at once", async ({
      skip,
    }) => {
      const { store, kill = skip } = await open();
      const pages = await Pages.open(1, PAGE);
      await store.store(NAMESPACE, pages.encode(), SOON_MS);
      await kill();
      await until(async () => {
        await store.find(NAMESPACE, pages.keys, SHORT_MS).catch(() => null);
        return store.isDown;
      }, "the peer to count as down");
      expect([store.refusal, store.state]).toEqual(["vault_down", "down"]);
      expect(store.trouble).toEqual(expect.stringMatching(/./));
      const finding = store.find(NAMESPACE, pages.keys, SOON_MS);
      await expect(finding).rejects.toMatchObject({ code: "VAULT_DOWN" });
    });
  });
}
