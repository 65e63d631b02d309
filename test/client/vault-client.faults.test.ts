// Owns the tests of client and vault with damage in between; each proves by the proxy's counts that the damage happened.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { ItemStatus } from "../../src/block.ts";
import type { VaultClient } from "../../src/client/vault-client.ts";
import { startFaultProxy } from "../support/fault-proxy.js";
import type { Faults, FaultProxy } from "../support/fault-proxy.js";
import { parseRecordHeader, verifyRecord } from "../support/native.ts";
import { digest, keysOf, makeRecords, NAMESPACE } from "../support/records.ts";
import type { TestRecord } from "../support/records.ts";
import {
  closeAfterTest,
  KeepingSink,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../support/vaults.ts";
import type { TestVault } from "../support/vaults.ts";

const SMALL = makeRecords(8, { payloadBytes: 2_000 });
const LARGE = makeRecords(8, { payloadBytes: 1_500_000 });

interface Bench {
  vault: TestVault;
  proxy: FaultProxy;
  client: VaultClient;
}

/** Vault, proxy with these faults, client behind it; `records` are stored past the proxy. */
async function openBench(records: readonly TestRecord[], faults: Partial<Faults>): Promise<Bench> {
  const vault = await openVault({ lanes: false });
  await openClient(vault).store(NAMESPACE, "kv", records, SOON_MS);
  const proxy = closeAfterTest(await startFaultProxy({ target: vault.address, faults }));
  return { vault, proxy, client: openClient(proxy) };
}

async function fetchAll(
  client: VaultClient,
  records: readonly TestRecord[],
  deadlineMs = SOON_MS,
): Promise<KeepingSink> {
  const sink = new KeepingSink();
  const runs = [{ recordClass: "kv" as const, group: 0, keys: keysOf(records) }];
  await client.fetch(NAMESPACE, runs, sink, { deadlineMs });
  return sink;
}

function isSound(record: Buffer | undefined): boolean {
  try {
    return record !== undefined && verifyRecord(record) !== null;
  } catch {
    return false;
  }
}

describe("on the way to the client", () => {
  test("without faults the proxy passes everything through", async () => {
    const { client, proxy } = await openBench([], {});
    const statuses = await client.store(NAMESPACE, "kv", LARGE, SOON_MS);
    expect(statuses).toEqual(LARGE.map(() => ItemStatus.ACCEPTED));
    const sink = await fetchAll(client, LARGE);
    for (const [item, { record }] of LARGE.entries()) {
      expect(sink.records.get(item)?.equals(record)).toBe(true);
    }
    expect(await client.health(SOON_MS)).toBe(true);
    expect(proxy.counts()).toMatchObject({ corrupted: 0, dropped: 0, hung: 0, connections: 1 });
    expect(proxy.counts().chunks).toBeGreaterThan(8);
  });

  test("a flipped bit is found by the record's checksum; the vault, asked, keeps its good copy", async () => {
    const { client, proxy } = await openBench(LARGE, { corruptAt: 3 });
    const sink = await fetchAll(client, LARGE);
    expect(proxy.counts().corrupted).toBe(1);
    const bad = [...LARGE.keys()].filter((item) => !isSound(sink.records.get(item)));
    expect(bad).toHaveLength(1);
    const statuses = await client.report(NAMESPACE, keysOf(LARGE), "checksum", SOON_MS);
    expect(statuses).toEqual(LARGE.map(() => ItemStatus.PRESENT));
  });

  test("swapped records carry right checksums and wrong identities", async () => {
    const { client, proxy } = await openBench(SMALL, { swapAt: 1 });
    const sink = await fetchAll(client, SMALL);
    expect(proxy.counts().swapped).toBe(2);
    const misplaced = [...SMALL.keys()].filter((item) => {
      const record = sink.records.get(item) ?? Buffer.alloc(0);
      expect(isSound(record)).toBe(true);
      return !parseRecordHeader(record).blockHash.equals(digest(`block ${item}`));
    });
    expect(misplaced).toEqual([0, 1]);
  });

  test("a dropped connection is a coded error, the sink hears of every item, and the next fetch works", async () => {
    const { vault, client, proxy } = await openBench(LARGE, { dropAt: 4 });
    const sink = new KeepingSink();
    const runs = [{ recordClass: "kv" as const, group: 0, keys: keysOf(LARGE) }];
    const fetching = client.fetch(NAMESPACE, runs, sink, { deadlineMs: SOON_MS });
    await expect(fetching).rejects.toMatchObject({ code: "VAULT_DOWN" });
    expect(proxy.counts().dropped).toBe(1);
    expect(sink.order).toHaveLength(LARGE.length);
    await until(() => vault.counters.get("fetches_ended_early") === 1, "the vault to notice");
    await until(
      () =>
        fetchAll(client, LARGE).then(
          (s) => s.records.size === LARGE.length,
          () => false,
        ),
      "a fetch to work again",
    );
  });

  test("a stream that stops in the middle ends at the deadline and does not count the vault as down", async () => {
    const { client, proxy } = await openBench(LARGE, { hangAt: 3 });
    for (let round = 1; round <= 3; round += 1) {
      proxy.set({ hangAt: 3 });
      await expect(fetchAll(client, LARGE, 300)).rejects.toMatchObject({ code: "VAULT_DEADLINE" });
      expect(proxy.counts().hung).toBe(round);
    }
    expect(client.state).toBe("up");
  });

  test("a slow vault costs the deadline, not more; calls in time still work", async () => {
    const { client, proxy } = await openBench(SMALL, {});
    await client.hello(SOON_MS);
    proxy.set({ delayMs: 1_000 });
    const startMs = performance.now();
    const slow = client.lookup(NAMESPACE, keysOf(SMALL), 150);
    await expect(slow).rejects.toMatchObject({ code: "VAULT_DEADLINE" });
    expect(performance.now() - startMs).toBeLessThan(950);
    expect([...(await client.lookup(NAMESPACE, keysOf(SMALL), SOON_MS))]).toEqual([0xff]);
    expect(proxy.counts().delayed).toBeGreaterThanOrEqual(2);
  });
});

describe("on the way to the vault", () => {
  test("a flipped bit is refused on accept, the other records are stored", async () => {
    const { vault, client, proxy } = await openBench([], { direction: "store", corruptAt: 2 });
    const statuses = await client.store(NAMESPACE, "kv", LARGE, SOON_MS);
    expect(proxy.counts().corrupted).toBe(1);
    expect(statuses.filter((status) => status === ItemStatus.BAD_RECORD)).toHaveLength(1);
    expect(statuses.filter((status) => status === ItemStatus.ACCEPTED)).toHaveLength(7);
    expect(vault.counters.get("refused_bad_record")).toBe(1);
    const present = await client.lookup(NAMESPACE, keysOf(LARGE), SOON_MS);
    for (const [item, status] of statuses.entries()) {
      expect((present[0] ?? 0) & (1 << item) ? 1 : 4).toBe(status);
    }
  });

  test("swapped records are refused for their keys", async () => {
    const { client, proxy } = await openBench([], { direction: "store", swapAt: 1 });
    const statuses = await client.store(NAMESPACE, "kv", SMALL, SOON_MS);
    expect(proxy.counts().swapped).toBe(2);
    const { WRONG_KEY, ACCEPTED } = ItemStatus;
    expect(statuses).toEqual([WRONG_KEY, WRONG_KEY, ...SMALL.slice(2).map(() => ACCEPTED)]);
  });

  test("a dropped connection frees what was reserved; storing again completes the rest", async () => {
    const { vault, client, proxy } = await openBench([], { direction: "store", dropAt: 4 });
    const storing = client.store(NAMESPACE, "kv", LARGE, SOON_MS);
    await expect(storing).rejects.toMatchObject({ code: "VAULT_DOWN" });
    expect(proxy.counts().dropped).toBe(1);
    const direct = openClient(vault);
    await until(async () => (await direct.stats(SOON_MS)).reservedBytes === 0, "free room");
    const statuses = await direct.store(NAMESPACE, "kv", LARGE, SOON_MS);
    const { PRESENT, ACCEPTED } = ItemStatus;
    expect(statuses.every((status) => status === PRESENT || status === ACCEPTED)).toBe(true);
    expect(statuses).toContain(ACCEPTED);
    expect((await fetchAll(direct, LARGE)).records.size).toBe(LARGE.length);
  });
});

test("the proxy as a program prints its address, obeys its stdin and counts at the end", async () => {
  const vault = await openVault({ lanes: false });
  await openClient(vault).store(NAMESPACE, "kv", LARGE, SOON_MS);
  const path = fileURLToPath(new URL("../support/fault-proxy.js", import.meta.url));
  const program = spawn(process.execPath, [
    path,
    "--target",
    vault.address,
    "--corrupt-every",
    "2",
  ]);
  closeAfterTest({ close: () => program.kill("SIGKILL") });
  const lines = createInterface({ input: program.stdout })[Symbol.asyncIterator]();
  const next = async (): Promise<Record<string, unknown>> =>
    JSON.parse(String((await lines.next()).value)) as Record<string, unknown>;

  const { address } = await next();
  const client = openClient({ address: String(address) });
  const sink = await fetchAll(client, LARGE);
  expect([...sink.records.values()].every(isSound)).toBe(false);
  program.stdin.write("counts\n");
  const { counts } = (await next()) as { counts: { chunks: number; corrupted: number } };
  expect(counts.corrupted).toBe(Math.floor(counts.chunks / 2));
  expect(counts.corrupted).toBeGreaterThan(3);

  program.stdin.write('{"delayMs": 1}\n');
  await next();
  expect([...(await fetchAll(client, LARGE)).records.values()].every(isSound)).toBe(true);
  const exited = once(program, "exit");
  program.kill("SIGTERM");
  expect(await next()).toMatchObject({ counts: { corrupted: counts.corrupted } });
  expect((await exited)[0]).toBe(0);
});
