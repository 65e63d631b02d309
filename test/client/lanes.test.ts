// Owns the proof of a client's lanes: records pass JavaScript by, what breaks goes on over gRPC, and no request hangs.
import { describe, expect, test } from "vitest";
import { ItemStatus } from "../../src/block.ts";
import type { VaultClient } from "../../src/client/vault-client.ts";
import { openFakeVault } from "../support/fake-vault.ts";
import { openFront, lanePeer, Pages } from "../support/lanes.ts";
import { noise, NAMESPACE, makeRecords, keysOf } from "../support/records.ts";
import { MIB, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";

const { ACCEPTED, INCOMPLETE } = ItemStatus;
const CALL = { deadlineMs: SOON_MS, onProgress: (): void => {} };

function land(client: VaultClient, pages: Pages, options = {}): Promise<number[]> {
  const landing = client.land(NAMESPACE, pages.plan(), { ...CALL, ...options });
  return landing.then(({ statuses }) => [...statuses]);
}

test("records are stored and land in slots, byte for byte", async () => {
  const vault = await openVault({ lanes: true });
  const client = openClient(vault);
  const pages = await Pages.open(5, 4096 * 400);
  const stored = await client.storeEncoded(NAMESPACE, "kv", pages.encode(), SOON_MS);
  expect(stored).toEqual({ statuses: [1, 1, 1, 1, 1], isOverLanes: true });
  expect(client.lanes).toBe("up");
  expect(await land(client, pages)).toEqual([1, 1, 1, 1, 1]);
  for (let index = 0; index < 5; index += 1) {
    expect(pages.landed(index).equals(noise(pages.bytes, index))).toBe(true);
  }
  expect(vault.counters.get("stored")).toBe(5);
  expect(vault.counters.get("fetched")).toBe(5);
});

test("both ways bring the same records", async () => {
  const client = openClient(await openVault({ lanes: true }));
  const records = makeRecords(3, { payloadBytes: 4096 });
  await client.store(NAMESPACE, "kv", records, SOON_MS);
  const pages = await Pages.open(4, 4096);
  expect(await land(client, pages)).toEqual([ACCEPTED, ACCEPTED, ACCEPTED, ItemStatus.MISSING]);
  expect(pages.landed(2).equals(noise(4096, 2))).toBe(true);
  expect([...(await client.lookup(NAMESPACE, keysOf(records), SOON_MS))]).toEqual([0b111]);
});

describe("without lanes", () => {
  test.each([
    ["offered", { lanes: false }, {}],
    ["wanted", { lanes: true }, { lanes: 0 }],
  ])("none are %s: everything goes over gRPC", async (_name, offered, wanted) => {
    const client = openClient(await openVault(offered), "kv", wanted);
    const pages = await Pages.open(2, 4096);
    expect(await land(client, pages)).toEqual([INCOMPLETE, INCOMPLETE]);
    const stored = await client.storeEncoded(NAMESPACE, "kv", pages.encode(), SOON_MS);
    expect(stored).toEqual({ statuses: [1, 1], isOverLanes: false });
    expect([...(await client.lookup(NAMESPACE, pages.keys, SOON_MS))]).toEqual([0b11]);
    expect(client.lanes).toBe("none");
  });

  test("they are refused: the same, and calls do not wait for them", async () => {
    const peer = lanePeer(() => {});
    const present = Buffer.from([0b1]);
    const Lookup = (_call: unknown, done: (error: null, reply: unknown) => void): void =>
      done(null, { present });
    const refused = { laneToken: peer.laneToken };
    const client = openClient(await openFakeVault({ Lookup }, refused));
    expect([...(await client.lookup(NAMESPACE, keysOf(makeRecords(1)), SOON_MS))]).toEqual([1]);
    expect(client.lanes).toBe("broken");
  });
});

describe("lanes that break", () => {
  test("the call goes on over gRPC, and they come back", async () => {
    const vault = await openVault({ lanes: true });
    const pages = await Pages.open(2, 4096);
    await openClient(vault).storeEncoded(NAMESPACE, "kv", pages.encode(), SOON_MS);
    const front = await openFront(vault);
    const client = openClient(front);
    expect([...(await client.lookup(NAMESPACE, pages.keys, SOON_MS))]).toEqual([0b11]);
    front.relay.cut();
    await until(() => client.lanes === "broken", "the break to be noticed");
    expect(await land(client, pages)).toEqual([INCOMPLETE, INCOMPLETE]);
    expect([...(await client.lookup(NAMESPACE, pages.keys, SOON_MS))]).toEqual([0]);
    await until(() => client.lanes === "up", "the lanes to come back");
    expect(await land(client, pages)).toEqual([ACCEPTED, ACCEPTED]);
  });

  test("in the middle of a fetch: its items are left to gRPC at once", async () => {
    const client = openClient(
      await openFakeVault(
        {},
        lanePeer((lane) => lane.destroy()),
      ),
    );
    const pages = await Pages.open(2, 4096);
    expect(await land(client, pages)).toEqual([INCOMPLETE, INCOMPLETE]);
    await until(() => client.lanes === "broken", "the break to be noticed");
  });
});

test("F4 a vault that trickles holds up nobody else", async () => {
  const [fast, slow] = [await openVault({ lanes: true }), await openVault({ lanes: true })];
  const pages = await Pages.open(2, MIB);
  await openClient(slow).storeEncoded(NAMESPACE, "kv", pages.encode(), SOON_MS);
  const other = openClient(fast);
  await other.storeEncoded(NAMESPACE, "kv", pages.encode(), SOON_MS);
  const front = await openFront(slow, { bytesPerTick: 100 });
  const late = openClient(front);
  const [slowPages, controller] = [await Pages.open(2, MIB), new AbortController()];
  let arrived = 0;
  const landing = late.land(NAMESPACE, slowPages.plan(), {
    ...CALL,
    onProgress: () => (arrived += 1),
    signal: controller.signal,
  });
  await until(() => arrived > 1, "the first bytes of the slow vault");
  for (let round = 0; round < 20; round += 1) {
    expect(await land(other, pages)).toEqual([ACCEPTED, ACCEPTED]);
    expect([...(await other.lookup(NAMESPACE, pages.keys, SOON_MS))]).toEqual([0b11]);
  }
  controller.abort(new Error("enough"));
  await expect(landing).rejects.toThrow("enough");
});

describe("a vault that is silent on its lanes", () => {
  test("is left at the deadline", async () => {
    const client = openClient(
      await openFakeVault(
        {},
        lanePeer(() => {}),
      ),
    );
    const landing = land(client, await Pages.open(2, 4096), { deadlineMs: 700 });
    await expect(landing).rejects.toMatchObject({ code: "VAULT_DEADLINE" });
    await until(() => client.lanes === "broken", "it to be taken for dead");
  });

  test("holds nobody who gives up", async () => {
    const client = openClient(
      await openFakeVault(
        {},
        lanePeer(() => {}),
      ),
    );
    const pages = await Pages.open(2, 4096);
    await client.hello(SOON_MS);
    const signal = AbortSignal.timeout(20);
    await expect(land(client, pages, { signal })).rejects.toThrow("timeout");
    const gone = land(client, pages);
    client.close();
    await expect(gone).rejects.toMatchObject({ code: "CLOSED" });
  });
});

test("no record byte enters the JavaScript heap while a gigabyte is restored", async () => {
  const client = openClient(await openVault({ lanes: true, maxBytes: 256 * MIB }));
  const pages = await Pages.open(64, MIB);
  for (const item of pages.encode()) {
    await client.storeEncoded(NAMESPACE, "kv", [item], SOON_MS);
  }
  await land(client, pages);
  const inHeap = (): number => {
    const { heapUsed, external, arrayBuffers } = process.memoryUsage();
    return heapUsed + external + arrayBuffers;
  };
  const before = inHeap();
  let most = before;
  const watch = setInterval(() => (most = Math.max(most, inHeap())), 1);
  for (let round = 0; round < 16; round += 1) {
    const { bytes, statuses } = await client.land(NAMESPACE, pages.plan(), CALL);
    expect(bytes).toBe(64 * (MIB + 192));
    expect(statuses.every((status) => status === ACCEPTED)).toBe(true);
    most = Math.max(most, inHeap());
  }
  clearInterval(watch);
  expect(most - before).toBeLessThan(16 * MIB);
});
