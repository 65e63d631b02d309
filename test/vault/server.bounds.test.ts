// Owns the tests of a vault's bounds in time and number, with limits made small.
import { connect } from "node:net";
import { status as GrpcStatus } from "@grpc/grpc-js";
import { expect, test, vi } from "vitest";
import { ItemStatus } from "../../src/block.ts";
import { splitAddress } from "../../src/hosts.ts";
import type * as Limits from "../../src/limits.ts";
import { VAULT_PEER_WAITING_MAX, VAULT_STREAMS_MAX, VAULT_WAITING_MAX } from "../../src/limits.ts";
import { openClosedVault, shown, TOKENS } from "../support/closed-vaults.ts";
import { firstMessage, pieceOf, rawFetch, RawStore } from "../support/raw-calls.ts";
import { keysOf, makeRecord, makeRecords, NAMESPACE } from "../support/records.ts";
import { closeAfterTest, MIB, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";

vi.mock("../../src/limits.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  STORE_IDLE_MS: 600,
  STREAM_STALL_MS: 600,
  VAULT_STREAMS_MAX: 3,
  VAULT_WAITING_MAX: 6,
  VAULT_PEER_WAITING_MAX: 4,
}));

test("a store that brings no byte is ended and its room is free", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  const raw = new RawStore(vault);
  const [record] = makeRecords(1, { payloadBytes: MIB });
  raw.offer([record!]);
  await raw.wanted();
  raw.pieces(pieceOf(0, record!.record, 0, 1000));
  // Messages without bytes are no progress.
  const empty = setInterval(() => raw.pieces(pieceOf(0, record!.record, 1000, 0)), 50);
  const { code, details } = await raw.failure();
  clearInterval(empty);
  expect(code).toBe(GrpcStatus.DEADLINE_EXCEEDED);
  expect(details).toContain("600 ms");
  expect((await client.stats(SOON_MS)).reservedBytes).toBe(0);
});

test("a store that keeps bringing bytes lives on past that time", async () => {
  const vault = await openVault();
  const raw = new RawStore(vault);
  const { record, key } = makeRecord(0, { payloadBytes: 1000 });
  raw.offer([{ record, key }]);
  await raw.wanted();
  for (let offset = 0; offset < record.length; offset += 200) {
    raw.pieces(pieceOf(0, record, offset, Math.min(200, record.length - offset)));
    await new Promise((resolve) => {
      setTimeout(resolve, 150);
    });
  }
  expect(await raw.finish()).toEqual(new Map([[0, ItemStatus.ACCEPTED]]));
});

test("F36 a reader that takes nothing is given up", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  const records = makeRecords(40, { payloadBytes: MIB });
  await client.store(NAMESPACE, "kv", records, SOON_MS);
  const segments = [{ recordClass: 1 as const, group: 0, keys: keysOf(records) }];
  const reader = rawFetch(vault, { segments });
  await firstMessage(reader);
  await until(() => vault.counters.get("fetches_ended_early") === 1, "the vault to give up");
  expect(vault.counters.get("fetched")).toBeLessThan(40);
  const failed = new Promise((resolve) => {
    reader.on("error", resolve);
  });
  reader.resume();
  expect(await failed).toMatchObject({ code: GrpcStatus.DEADLINE_EXCEEDED });
});

test("more streams than allowed are refused as busy, and places come back", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  const holders = Array.from({ length: VAULT_STREAMS_MAX }, () => new RawStore(vault));
  for (const [index, holder] of holders.entries()) {
    holder.offer([makeRecord(index)]);
    await holder.wanted();
  }
  const record = makeRecord(50);
  await expect(client.store(NAMESPACE, "kv", [record], SOON_MS)).rejects.toMatchObject({
    code: "VAULT_BUSY",
    message: expect.stringContaining(`the limit is ${VAULT_STREAMS_MAX}`) as string,
  });
  // Busy is not down: the breaker stays closed.
  expect(client.state).toBe("up");
  holders[0]?.call.cancel();
  await until(
    () =>
      client.store(NAMESPACE, "kv", [record], SOON_MS).then(
        () => true,
        () => false,
      ),
    "a free place",
  );
});

/** So many silent connections from one address; how many of them are open. */
function crowdFrom(localAddress: string, address: string): () => number {
  const sockets = Array.from({ length: VAULT_WAITING_MAX }, () =>
    connect({ ...splitAddress(address), localAddress }).on("error", () => {}),
  );
  closeAfterTest({ close: () => sockets.map((socket) => socket.destroy()) });
  return () => sockets.filter((socket) => !socket.closed).length;
}

test("F36 of connections that wait, those above an address's share and above that of all give way, the oldest first", async () => {
  const vault = await openVault();
  const refused = (): number => vault.counters.get("connections_refused");
  const open = crowdFrom("127.0.0.2", vault.address);
  await until(() => open() === VAULT_PEER_WAITING_MAX, "the share of one address");
  const left = VAULT_WAITING_MAX - VAULT_PEER_WAITING_MAX;
  expect(refused()).toBe(left);
  const others = crowdFrom("127.0.0.3", vault.address);
  await until(() => others() === VAULT_PEER_WAITING_MAX, "the share of another one");
  await until(() => open() === left, "the first address to give way");
  expect(refused()).toBe(VAULT_WAITING_MAX);
});

test("F36 who holds a token is served while an address has its share of connections that have not got through TLS", async () => {
  const vault = await openClosedVault();
  const open = crowdFrom("127.0.0.2", vault.address);
  await until(() => open() === VAULT_PEER_WAITING_MAX, "the share of one address");
  const client = openClient(vault, "kv", { security: shown(vault, TOKENS.read), lanes: 0 });
  expect((await client.stats(SOON_MS)).records).toBe(0);
});
