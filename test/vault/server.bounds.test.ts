// Owns the tests of a vault's bounds in time and number, with limits made small.
import { status as GrpcStatus } from "@grpc/grpc-js";
import { expect, test, vi } from "vitest";
import { ItemStatus } from "../../src/block.ts";
import type * as Limits from "../../src/limits.ts";
import { VAULT_CONNECTIONS_MAX, VAULT_STREAMS_MAX } from "../../src/limits.ts";
import { vaultService } from "../../src/wire/service.ts";
import { firstMessage, openChannel, pieceOf, rawFetch, RawStore } from "../support/raw-calls.ts";
import { keysOf, makeRecord, makeRecords, NAMESPACE } from "../support/records.ts";
import { MIB, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";

vi.mock("../../src/limits.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  STORE_IDLE_MS: 600,
  STREAM_STALL_MS: 600,
  VAULT_STREAMS_MAX: 3,
  VAULT_CONNECTIONS_MAX: 4,
}));

const NEVER = new AbortController().signal;

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

test("F36 more connections than allowed are dropped and counted", async () => {
  const vault = await openVault();
  const hello = { protocolMin: 1, protocolMax: 1, clientVersion: "", clientName: "" };
  const ask = async (): Promise<unknown> =>
    await openChannel(vault).unary(vaultService.Hello, hello, { timeoutMs: 1_000, signal: NEVER });
  for (let index = 0; index < VAULT_CONNECTIONS_MAX; index += 1) await ask();
  await expect(ask()).rejects.toThrow();
  expect(vault.counters.get("connections_refused")).toBeGreaterThan(0);
});
