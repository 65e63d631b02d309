// Owns the proof that a drain changes nothing where it lacks a right, and leaves nothing behind where it breaks off.
import { expect, test, vi } from "vitest";
import { ItemStatus } from "../../src/base/block.ts";
import { TierkvError } from "../../src/base/errors.ts";
import { Drain } from "../../src/moving/drain.ts";
import { openPool } from "../../src/sidecar/vaults/pools.ts";
import type { TestClient } from "../support/record-client.ts";
import { makeRecords, NAMESPACE } from "../support/records.ts";
import { openClient, openVault, SOON_MS } from "../support/vaults.ts";

async function openTwo(): Promise<{ source: TestClient; other: TestClient; drain: Drain }> {
  const [source, other] = [openClient(await openVault()), openClient(await openVault())];
  const clients = [source, other];
  for (const client of clients) await client.hello(SOON_MS);
  await source.put(NAMESPACE, makeRecords(4), SOON_MS);
  const pool = openPool("kv", clients, {});
  return { source, other, drain: new Drain({ source, clients, pool, rate: null }) };
}

/** Whether the vault takes what it does not have yet. */
async function takes(client: TestClient): Promise<boolean> {
  const [, status] = await client.put(NAMESPACE, makeRecords(6).slice(4), SOON_MS);
  return status === ItemStatus.ACCEPTED;
}

const denied = new TierkvError("INTERNAL", { reason: "denied" });

test("F149 a drain that may not list another vault does not begin", async () => {
  const { source, other, drain } = await openTwo();
  const begun = vi.spyOn(source, "drain");
  vi.spyOn(other, "list").mockRejectedValue(denied);
  await expect(drain.run()).rejects.toThrow("denied");
  expect(begun).not.toHaveBeenCalled();
  expect(await takes(source)).toBe(true);
});

test("F149 a drain that may only read at another vault does not begin, and names it", async () => {
  const { source, other, drain } = await openTwo();
  const begun = vi.spyOn(source, "drain");
  vi.spyOn(other, "isReadOnly", "get").mockReturnValue(true);
  await expect(drain.run()).rejects.toThrow(other.address);
  expect(begun).not.toHaveBeenCalled();
});

test("F149 after a drain that broke off the vault takes records again, unless it was being drained before", async () => {
  const { source, drain } = await openTwo();
  const stats = vi.spyOn(source, "stats").mockRejectedValue(denied);
  await expect(drain.run()).rejects.toThrow("denied");
  expect(await takes(source)).toBe(true);
  await source.drain(SOON_MS);
  await expect(drain.run()).rejects.toThrow("denied");
  expect(source.isDraining).toBe(true);
  stats.mockRestore();
  await drain.run();
  expect(drain.drained.left).toEqual({});
});
