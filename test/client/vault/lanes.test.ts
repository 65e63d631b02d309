// Owns the proof of a client's lanes: no record enters JavaScript, broken requests go on over new lanes, none hangs.
import { describe, expect, test } from "vitest";
import { ItemStatus } from "../../../src/base/block.ts";
import type { VaultClient } from "../../../src/client/vault/vault-client.ts";
import { openFakeVault } from "../../support/fake-vault.ts";
import { openFront, lanePeer, onlyLookups, Pages } from "../../support/lanes.ts";
import { noise, NAMESPACE } from "../../support/records.ts";
import { MIB, openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

const { ACCEPTED } = ItemStatus;
const CALL = { deadlineMs: SOON_MS };

function fetch(client: VaultClient, pages: Pages, options = {}): Promise<number[]> {
  const fetching = client.fetch(NAMESPACE, pages.plan(), { ...CALL, ...options });
  return fetching.then(({ statuses }) => [...statuses]);
}

test("records are stored and land in slots, byte for byte", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  const pages = await Pages.open(5, 4096 * 400);
  expect(await client.store(NAMESPACE, pages.encode(), SOON_MS)).toEqual([1, 1, 1, 1, 1]);
  expect(client.lanes).toBe("up");
  expect(await fetch(client, pages)).toEqual([1, 1, 1, 1, 1]);
  for (let index = 0; index < 5; index += 1) {
    expect(pages.fetched(index).equals(noise(pages.bytes, index))).toBe(true);
  }
  expect(vault.counters.get("stored")).toBe(5);
  expect(vault.counters.get("fetched")).toBe(5);
});

test.each([true, false])(
  "a trace's context goes to a vault that says it traces (%s), and to no other",
  async (traced) => {
    const answer = onlyLookups(0xff);
    const heard: Buffer[] = [];
    const peer = lanePeer((socket, data) => {
      heard.push(data);
      answer(socket, data);
    });
    const client = openClient(await openFakeVault({}, { ...peer, traced }));
    await client.hello(SOON_MS);
    await until(() => client.lanes === "up", "the lanes");
    const context = noise(25, 1);
    await client.lookup(NAMESPACE, noise(36, 2), SOON_MS, {
      trace: context,
      isCounted: true,
    });
    const frame = Buffer.concat(heard);
    expect(frame.length).toBe(40 + 32 + 36 + (traced ? 25 : 0));
    expect(frame.subarray(-25).equals(context)).toBe(traced);
  },
);

describe("without lanes", () => {
  const refusing = { laneToken: Buffer.alloc(32, 1) };
  const Lookup = (_call: unknown, done: (error: null, reply: unknown) => void): void =>
    done(null, { present: Buffer.from([0b11]) });

  test("no record travels, which says so; look-ups do", async () => {
    const client = openClient(await openFakeVault({ Lookup }, refusing));
    const pages = await Pages.open(2, 4096);
    const none = {
      code: "LANES_UNREACHABLE",
      message: expect.stringContaining("doctor") as string,
    };
    await expect(fetch(client, pages)).rejects.toMatchObject(none);
    await expect(client.store(NAMESPACE, pages.encode(), SOON_MS)).rejects.toMatchObject(none);
    expect([...(await client.lookup(NAMESPACE, pages.keys, SOON_MS))]).toEqual([0b11]);
    expect([client.lanes, client.state]).toEqual(["broken", "up"]);
  });

  test("that cannot be opened again and again, nobody asks the vault", async () => {
    const client = openClient(await openFakeVault({ Lookup }, refusing));
    await client.hello(SOON_MS);
    expect(client.isDown).toBe(false);
    await until(() => client.isDown, "the vault to count as down for records");
    expect(client.state).toBe("up");
    const pages = await Pages.open(1, 4096);
    await expect(fetch(client, pages)).rejects.toMatchObject({ code: "LANES_UNREACHABLE" });
  });
});

describe("lanes that break", () => {
  test("between calls come back, and the next call waits for them", async () => {
    const vault = await openVault();
    const pages = await Pages.open(2, 4096);
    await openClient(vault).store(NAMESPACE, pages.encode(), SOON_MS);
    const front = await openFront(vault);
    const client = openClient(front);
    await client.hello(SOON_MS);
    await until(() => client.lanes === "up", "the lanes");
    expect([...(await client.lookup(NAMESPACE, pages.keys, SOON_MS))]).toEqual([0b11]);
    front.relay.cut();
    await until(() => client.lanes === "broken", "the break to be noticed");
    // Look-ups go over gRPC meanwhile, where this front holds nothing.
    expect([...(await client.lookup(NAMESPACE, pages.keys, SOON_MS))]).toEqual([0]);
    expect(await fetch(client, pages)).toEqual([ACCEPTED, ACCEPTED]);
    expect(client.lanes).toBe("up");
  });

  test("in the middle of a fetch: what is left comes over new ones", async () => {
    const vault = await openVault();
    const pages = await Pages.open(8, MIB);
    await openClient(vault).store(NAMESPACE, pages.encode(), SOON_MS);
    const front = await openFront(vault, { bytesPerTick: 64 * 1024 });
    const client = openClient(front);
    const fetching = fetch(client, pages);
    await until(() => front.relay.passed() > MIB, "the first record");
    front.relay.cut();
    expect(await fetching).toEqual(Array(8).fill(ACCEPTED));
    expect(client.retries.taken).toBe(1);
    for (let index = 0; index < 8; index += 1) {
      expect(pages.fetched(index).equals(noise(pages.bytes, index))).toBe(true);
    }
  });

  test("in the middle of a store: what is left goes over new ones", async () => {
    const vault = await openVault();
    const front = await openFront(vault);
    const client = openClient(front);
    await client.hello(SOON_MS);
    const pages = await Pages.open(8, MIB);
    const storing = client.store(NAMESPACE, pages.encode(), SOON_MS);
    await until(() => vault.stats().reservedBytes > 0, "the offer");
    front.relay.cut();
    const { PRESENT } = ItemStatus;
    const statuses = await storing;
    expect(statuses.every((status) => status === ACCEPTED || status === PRESENT)).toBe(true);
    expect(vault.stats().records).toBe(8);
    expect(client.retries.taken).toBe(1);
  });

  test("again and again: the call ends with the budget for second tries", async () => {
    const client = openClient(
      await openFakeVault(
        {},
        lanePeer((lane) => lane.destroy()),
      ),
    );
    const pages = await Pages.open(2, 4096);
    const options = { deadlineMs: 4_000 };
    await expect(fetch(client, pages, options)).rejects.toMatchObject({
      code: expect.stringMatching(/VAULT_DEADLINE|VAULT_BUSY|LANES_UNREACHABLE/) as string,
    });
    expect(client.retries.taken).toBeGreaterThan(0);
  });
});

test("F4 a vault that trickles holds up nobody else", async () => {
  const [fast, slow] = [await openVault(), await openVault()];
  const pages = await Pages.open(2, MIB);
  await openClient(slow).store(NAMESPACE, pages.encode(), SOON_MS);
  const other = openClient(fast);
  await other.store(NAMESPACE, pages.encode(), SOON_MS);
  const front = await openFront(slow, { bytesPerTick: 100 });
  const late = openClient(front);
  const [slowPages, controller] = [await Pages.open(2, MIB), new AbortController()];
  const fetching = late.fetch(NAMESPACE, slowPages.plan(), {
    ...CALL,
    signal: controller.signal,
  });
  await until(() => front.relay.passed() > 2_000, "the first bytes of the slow vault");
  for (let round = 0; round < 20; round += 1) {
    expect(await fetch(other, pages)).toEqual([ACCEPTED, ACCEPTED]);
    expect([...(await other.lookup(NAMESPACE, pages.keys, SOON_MS))]).toEqual([0b11]);
  }
  controller.abort(new Error("enough"));
  await expect(fetching).rejects.toThrow("enough");
});

describe("a vault that is silent on its lanes", () => {
  test("is left at the deadline", async () => {
    const client = openClient(
      await openFakeVault(
        {},
        lanePeer(() => {}),
      ),
    );
    const fetching = fetch(client, await Pages.open(2, 4096), { deadlineMs: 700 });
    await expect(fetching).rejects.toMatchObject({ code: "VAULT_DEADLINE" });
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
    await expect(fetch(client, pages, { signal })).rejects.toThrow("timeout");
    const gone = fetch(client, pages);
    client.close();
    await expect(gone).rejects.toMatchObject({ code: "CLOSED" });
  });
});

test("no record byte enters the JavaScript heap while a gigabyte is restored", async () => {
  const client = openClient(await openVault({ maxBytes: 256 * MIB }));
  const pages = await Pages.open(64, MIB);
  for (const item of pages.encode()) {
    await client.store(NAMESPACE, [item], SOON_MS);
  }
  await fetch(client, pages);
  const inHeap = (): number => {
    const { heapUsed, external, arrayBuffers } = process.memoryUsage();
    return heapUsed + external + arrayBuffers;
  };
  const before = inHeap();
  let most = before;
  const watch = setInterval(() => (most = Math.max(most, inHeap())), 1);
  for (let round = 0; round < 16; round += 1) {
    const { bytes, statuses } = await client.fetch(NAMESPACE, pages.plan(), CALL);
    expect(bytes).toBe(64 * (MIB + 192));
    expect(statuses.every((status) => status === ACCEPTED)).toBe(true);
    most = Math.max(most, inHeap());
  }
  clearInterval(watch);
  expect(most - before).toBeLessThan(16 * MIB);
});
