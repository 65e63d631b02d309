// Owns the proof of several rails to one vault: a cut or wrong one costs nothing but itself.
import { once } from "node:events";
import { connect, createServer } from "node:net";
import type { AddressInfo, Socket } from "node:net";
import { describe, expect, test } from "vitest";
import { ItemStatus } from "../../../src/base/block.ts";
import { splitAddress } from "../../../src/base/hosts.ts";
import type { VaultClient } from "../../../src/client/vault/vault-client.ts";
import { Weather, openByteProxy } from "../../faults/lib/byte-proxy.ts";
import { freePort } from "../../support/etcd.ts";
import { openFakeVault } from "../../support/fake-vault.ts";
import { lanePeer, onlyLookups, Pages } from "../../support/lanes.ts";
import { NAMESPACE, noise } from "../../support/records.ts";
import {
  closeAfterTest,
  MIB,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../../support/vaults.ts";
import type { TestVault } from "../../support/vaults.ts";

const { ACCEPTED } = ItemStatus;
const BLOCKS = 16;

/** Opens a vault that reports a second address; the first is behind a proxy. */
async function openTwoWays(): Promise<{ vault: TestVault; weather: Weather; address: string }> {
  const vault = await openVault({ maxBytes: 256 * MIB, second: `127.0.0.2:${await freePort()}` });
  const weather = new Weather(1);
  const { address } = await openByteProxy(weather, vault.address);
  return { vault, weather, address };
}

/** Opens a door before a vault that notes source addresses; connections from one address can be cut. */
async function openDoor(
  vault: string,
): Promise<{ address: string; seen: string[]; cut(from: string): void }> {
  const seen: string[] = [];
  const pairs: { from: string; sockets: Socket[] }[] = [];
  let lost = "";
  const hold = (sockets: Socket[]): void => {
    for (const socket of sockets) socket.unpipe().pause();
  };
  const server = createServer((client) => {
    const from = client.remoteAddress ?? "";
    const inner = connect(splitAddress(vault));
    const sockets = [client, inner];
    seen.push(from);
    pairs.push({ from, sockets });
    for (const socket of sockets) socket.on("error", () => {});
    if (from !== lost) client.pipe(inner).pipe(client);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  closeAfterTest({
    close: () => {
      for (const socket of pairs.flatMap(({ sockets }) => sockets)) socket.destroy();
      server.close();
    },
  });
  const cut = (from: string): void => {
    lost = from;
    for (const { sockets } of pairs.filter((pair) => pair.from === from)) hold(sockets);
  };
  return { address: `127.0.0.1:${(server.address() as AddressInfo).port}`, seen, cut };
}

async function bothUp(client: VaultClient): Promise<void> {
  await client.hello(SOON_MS);
  expect((await client.rails()).map(({ isOpen }) => isOpen)).toEqual([true, true]);
  await until(() => client.lanes === "up" && client.lanesOver === 2, "lanes over both ways");
}

// Linux only, because elsewhere the loopback has one address.
describe.skipIf(process.platform !== "linux")("two ways", () => {
  test("F85 one that falls silent in the middle of a fetch: what it had comes over the other, and it is used again later", async () => {
    const { weather, address } = await openTwoWays();
    const client = openClient({ address });
    await bothUp(client);
    // Large enough to be cut in the middle.
    const pages = await Pages.open(BLOCKS, 4 * MIB);
    await client.store(NAMESPACE, pages.encode(), SOON_MS);
    // On a busy machine the proxy may have been stalled for too long.
    await until(() => client.lanesOver === 2, "lanes over both ways");
    weather.set({ bytesPerSecond: 4 * MIB });
    const before = weather.counts.bytes;
    const fetching = client.fetch(NAMESPACE, pages.plan(), { deadlineMs: SOON_MS });
    await until(() => weather.counts.bytes > before + 256 * 1024, "the first bytes");
    weather.set({ lose: "both" });
    expect([...(await fetching).statuses]).toEqual(Array(BLOCKS).fill(ACCEPTED));
    for (let index = 0; index < BLOCKS; index += 1) {
      expect(pages.fetched(index).equals(noise(pages.bytes, index))).toBe(true);
    }
    expect(weather.counts.lost).toBeGreaterThan(0);
    // Calls use the other rail, too.
    expect((await client.stats(SOON_MS)).records).toBe(BLOCKS);
    expect([client.state, client.lanesOver, client.cut]).toEqual(["up", 1, [address]]);
    expect(client.retries.taken).toBeGreaterThan(0);
    weather.set({});
    await until(() => client.lanesOver === 2, "the way to be used again");
    expect(client.cut).toEqual([]);
  });
});

describe.skipIf(process.platform !== "linux")("addresses of this machine", () => {
  test("F110 a vault that names one address has lanes from each; calls come from one, and from another when it is cut", async () => {
    const vault = await openVault();
    const locals = ["127.0.0.3", "127.0.0.4"];
    const { address, seen, cut } = await openDoor(vault.address);
    const client = openClient({ address }, "kv", { locals });
    await bothUp(client);
    const pages = await Pages.open(BLOCKS, MIB);
    await client.store(NAMESPACE, pages.encode(), SOON_MS);
    expect(await client.rails()).toMatchObject(locals.map((local) => ({ address, local })));
    expect(new Set(seen)).toEqual(new Set(locals));
    cut("127.0.0.3");
    const { statuses } = await client.fetch(NAMESPACE, pages.plan(), { deadlineMs: SOON_MS });
    expect([...statuses]).toEqual(Array(BLOCKS).fill(ACCEPTED));
    seen.length = 0;
    expect((await client.stats(SOON_MS)).records).toBe(BLOCKS);
    expect([client.lanesOver, client.retries.refused]).toEqual([1, 0]);
  });

  test("none that cannot reach a vault is tried: of the other family, or where it is within this machine", async () => {
    const vault = await openVault();
    const client = openClient(vault, "kv", { locals: ["::1", "198.18.0.1"] });
    await client.hello(SOON_MS);
    expect(await client.rails()).toMatchObject([{ address: vault.address, isOpen: true }]);
  });
});

describe("an address that a vault tells of", () => {
  test("F85 is not used where another vault answers", async () => {
    const other = await openVault();
    const teller = await openFakeVault(
      {},
      { ...lanePeer(onlyLookups(1)), addresses: [other.address] },
    );
    const client = openClient(teller);
    await client.hello(SOON_MS);
    expect((await client.rails()).map(({ isOpen }) => isOpen)).toEqual([true, false]);
    await client.lookup(NAMESPACE, Buffer.alloc(36), SOON_MS);
    expect([
      client.lanesOver,
      other.counters.get("hellos"),
      other.counters.get("lanes_refused"),
    ]).toEqual([1, 1, 0]);
  });

  test("F85 is not used where lanes are refused", async () => {
    const other = await openFakeVault({});
    const teller = await openFakeVault(
      {},
      { ...lanePeer(onlyLookups(1)), addresses: [other.address] },
    );
    const client = openClient(teller);
    await client.hello(SOON_MS);
    await until(async () => (await client.rails())[1]?.isOpen === false, "the way to be given up");
    await until(() => client.lanesOver === 1, "lanes over the other");
    expect([...(await client.lookup(NAMESPACE, Buffer.alloc(36), SOON_MS))]).toEqual([1]);
  });

  test("is passed over where its port is none", async () => {
    const addresses = ["127.0.0.1:99999", "127.0.0.2:none", "127.0.0.3:-1", "127.0.0.4:"];
    const teller = await openFakeVault({}, { ...lanePeer(onlyLookups(1)), addresses });
    const client = openClient(teller);
    await client.hello(SOON_MS);
    expect(await client.rails()).toHaveLength(1);
  });

  test("is not looked at on the network where the vault itself is within this machine and in the clear", async () => {
    const teller = await openFakeVault(
      {},
      { ...lanePeer(onlyLookups(1)), addresses: ["198.18.0.1:1"] },
    );
    const client = openClient(teller);
    await client.hello(SOON_MS);
    expect(await client.rails()).toHaveLength(1);
  });
});
