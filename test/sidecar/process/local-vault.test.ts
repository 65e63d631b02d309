// Owns the proof that a machine's own vault holds both classes, comes back when it dies, and ends when it is no longer wanted.
import { readdirSync, statSync, unlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { ItemStatus } from "../../../src/base/block.ts";
import { newSidecarCounters } from "../../../src/base/metrics.ts";
import type { SidecarCounters } from "../../../src/base/metrics.ts";
import { nowMs } from "../../../src/base/time.ts";
import { LocalVault } from "../../../src/sidecar/process/local-vault.ts";
import { processesWith } from "../../support/processes.ts";
import { keysOf, makeRecords, NAMESPACE } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, logger, MIB, openClient, SOON_MS, until } from "../../support/vaults.ts";

interface TestLocalVault {
  dir: string;
  address: string;
  vault: LocalVault;
  counters: SidecarCounters;
}

function make(): TestLocalVault {
  const dir = testDirectory();
  const address = `unix:${join(dir, "s.sock.vault")}`;
  const counters = newSidecarCounters();
  const options = {
    address,
    maxBytes: 32 * MIB,
    configPath: null,
    otlpEndpoint: null,
    logger,
    counters,
  };
  return { dir, address, counters, vault: closeAfterTest(new LocalVault(options)) };
}

async function start(): Promise<TestLocalVault & { pid: number }> {
  const made = make();
  await made.vault.start();
  return { ...made, pid: only(made.address) };
}

function only(address: string): number {
  const pids = processesWith(" vault ", address);
  expect(pids).toHaveLength(1);
  return pids[0] ?? 0;
}

test("records of both classes come back from one vault on a private socket", async () => {
  const { dir, address } = await start();
  for (const name of ["kv", "ssm"] as const) {
    const client = openClient({ address }, name);
    const records = makeRecords(5, { recordClass: name, group: name === "kv" ? 0 : 1 });
    const statuses = await client.put(NAMESPACE, records, SOON_MS);
    expect(statuses).toEqual(records.map(() => ItemStatus.ACCEPTED));
    const fetched = await client.take(NAMESPACE, keysOf(records), SOON_MS);
    for (const [item, { record }] of records.entries())
      expect(fetched.records.get(item)?.equals(record)).toBe(true);
    const { recordClass, maxBytes } = await client.stats(SOON_MS);
    expect([recordClass, maxBytes]).toEqual([0, 32 * MIB]);
  }
  expect(statSync(join(dir, "s.sock.vault")).mode & 0o777).toBe(0o600);
});

test("closing ends its process and leaves no file", async () => {
  const { dir, address, vault } = await start();
  await vault.close();
  expect(processesWith(address)).toEqual([]);
  expect(readdirSync(dir)).toEqual([]);
});

test("F17 a vault that is killed is started again, and counted", async () => {
  const { address, counters, pid } = await start();
  process.kill(pid, "SIGKILL");
  const client = openClient({ address });
  await until(() => counters.get("local_vault_restarts") === 1, "the restart");
  await until(() => client.hello(SOON_MS).then(Boolean, () => false), "the new one to answer");
  expect(only(address)).not.toBe(pid);
});

test("a vault that hangs is killed, not waited for", async () => {
  const { address, vault, pid } = await start();
  process.kill(pid, "SIGSTOP");
  const startMs = nowMs();
  await vault.close();
  expect(nowMs() - startMs).toBeLessThan(SOON_MS / 2);
  expect(processesWith(address)).toEqual([]);
});

test("a vault that dies while it is being closed is not started again", async () => {
  const { address, counters, vault, pid } = await start();
  process.kill(pid, "SIGKILL");
  await vault.close();
  expect(processesWith(address)).toEqual([]);
  expect(counters.get("local_vault_restarts")).toBe(0);
});

test("a vault that cannot start says why, and leaves no process", async () => {
  const { dir, address, vault } = make();
  writeFileSync(join(dir, "s.sock.vault"), "precious");
  await expect(vault.start()).rejects.toMatchObject({
    code: "LOCAL_VAULT",
    message: expect.stringContaining(
      "something that is not a socket is there; remove it",
    ) as string,
  });
  expect(processesWith(address)).toEqual([]);
});

test("a place that is taken at first is tried again until it is free", async () => {
  const { dir, address, counters, pid } = await start();
  process.kill(pid, "SIGKILL");
  // Comes between the death and the next start, which is half a second away.
  await until(() => processesWith(address).length === 0, "its end");
  const path = join(dir, "s.sock.vault");
  unlinkSync(path);
  writeFileSync(path, "in the way");
  await until(() => counters.get("local_vault_restarts") >= 2, "a second attempt");
  unlinkSync(path);
  const client = openClient({ address });
  await until(() => client.hello(SOON_MS).then(Boolean, () => false), "it to answer again");
});
