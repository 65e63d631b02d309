// Owns the proof that a vault can be emptied while it is read: what it held is found before, during and after, whatever ends the move.
// @module-tag alone
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { HASH_BYTES, ItemStatus } from "../../../src/base/block.ts";
import { DRAIN_BATCH_RECORDS, DRAIN_BATCHES } from "../../../src/base/limits/pool.ts";
import { Pool } from "../../../src/sidecar/vaults/pools.ts";
import { Program, runInside, withoutProgress } from "../../support/command-line.ts";
import type { TestClient } from "../../support/record-client.ts";
import { makeRecords, NAMESPACE } from "../../support/records.ts";
import type { TestRecord } from "../../support/records.ts";
import { saveAll } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks, makeGroup } from "../../support/shim-client.ts";
import type { Block, EngineShape } from "../../support/shim-client.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";
import type { TestSidecar } from "../../support/sidecars.ts";
import { startVaultProcess } from "../../support/vault-process.ts";
import type { Place } from "../../support/vault-process.ts";
import { MIB, openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

const PAGE = 8192;
const BLOCKS = 389;
const LONG = { maxModelLen: 16 * BLOCKS };

async function sidecarOf(
  vaults: readonly Place[],
): Promise<{ sidecar: TestSidecar; clients: TestClient[] }> {
  const clients = vaults.map((vault) => openClient(vault));
  const options = { when: "always", waitMs: 20_000 } as const;
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...options });
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  return { sidecar, clients };
}

/** How many blocks an engine without anything of its own gets back, all of the right bytes. */
async function foundBy(
  sidecar: TestSidecar,
  blocks: readonly Block[],
  engine: string,
  shape: EngineShape = LONG,
): Promise<number> {
  const reader = await FakeEngine.start(sidecar.socketPath, { ...shape, engine });
  const view = await reader.done(reader.prefetch(hashesOf(blocks)));
  const placed = view.placed.get(0)?.length ?? 0;
  expect(blocks.slice(0, placed).filter((block, at) => !reader.holds(view, at, block))).toEqual([]);
  reader.release(view.plan);
  return placed;
}

function configOf(vaults: readonly Pick<Place, "address">[], socket = "/nonexistent"): string {
  const config = join(testDirectory(), "tierkv.toml");
  const list = JSON.stringify(vaults.map(({ address }) => address));
  writeFileSync(config, `[cluster]\nkv_cold = ${list}\n[sidecar]\nsocket = "${socket}"\n`);
  return config;
}

interface Result {
  drained: {
    moved: { records: number; bytes: number };
    present: { records: number };
    left: Record<string, { records: number }>;
    evicted: number;
  }[];
}

const drain = (config: string, { address }: Place, ...more: string[]): Program =>
  new Program(["vaults", "drain", address, "--json", "--config", config, ...more]);

const recordsOf = async (client: TestClient): Promise<number> => {
  const { records, disk } = await client.stats(SOON_MS);
  return Math.max(records, disk?.records ?? 0);
};

test("F73 a vault is emptied under reads: nothing that is held is missed, and nothing new comes to it", async () => {
  const vaults = [await startVaultProcess(), await startVaultProcess(), await startVaultProcess()];
  const { sidecar, clients } = await sidecarOf(vaults);
  const engine = await FakeEngine.start(sidecar.socketPath, LONG);
  const blocks = makeBlocks("moving", BLOCKS, PAGE);
  await saveAll({ engine, sidecar }, blocks);
  const [source] = clients as [TestClient];
  const held = await recordsOf(source);
  expect(held).toBeGreaterThan(48);
  const config = configOf(vaults, sidecar.socketPath);
  const program = drain(config, vaults[0]!, "--rate", "1MB");
  await until(() => source.isDraining, "the sidecar to hear of it");
  const listed = await runInside(["vaults", "ls", "--config", config]);
  expect(listed.stdout).toMatch(/ drains /);
  const refused = await source.put(NAMESPACE, makeRecords(1), SOON_MS);
  expect(refused).toEqual([ItemStatus.DRAINING]);
  // Others hear of it with their hello, and never knew who owned what before.
  const late = await sidecarOf(vaults);
  let reads = 0;
  while (program.process.exitCode === null) {
    expect(await foundBy(reads % 2 === 0 ? sidecar : late.sidecar, blocks, `r${reads}`)).toBe(
      BLOCKS,
    );
    reads += 1;
    if (reads > 1) continue;
    await saveAll({ engine, sidecar }, makeBlocks("new", 128, PAGE));
  }
  const { exitCode, stdout, stderr } = await program.ended();
  expect([exitCode, withoutProgress(stderr)]).toEqual([0, ""]);
  const { drained } = JSON.parse(stdout) as Result;
  // A little of what others hold gets another owner, too.
  expect(drained).toMatchObject([{ present: { records: 0 }, left: {} }]);
  expect(drained[0]!.moved.records).toBeGreaterThanOrEqual(held);
  expect(reads).toBeGreaterThan(1);
  expect(await recordsOf(source)).toBe(held);

  process.kill(vaults[0]!.pid, "SIGKILL");
  const after = await sidecarOf(vaults.slice(1));
  expect(await foundBy(after.sidecar, blocks, "after")).toBe(BLOCKS);
});

test("F74 a vault that is killed in the middle of being emptied is emptied by the next run", async () => {
  // Alike, because a few runs change owner among the others where capacities differ.
  const start = (dataDir: string): ReturnType<typeof startVaultProcess> =>
    startVaultProcess(0, "127.0.0.1", { dataDir });
  const folders = [testDirectory(), testDirectory(), testDirectory()];
  const vaults = await Promise.all(folders.map((folder) => start(folder)));
  const { sidecar, clients } = await sidecarOf(vaults);
  const engine = await FakeEngine.start(sidecar.socketPath, LONG);
  const blocks = makeBlocks("killed", BLOCKS, PAGE);
  await saveAll({ engine, sidecar }, blocks);
  // The one that holds most, because the first batches on their way are all of a small share.
  const shares = await Promise.all(clients.map(recordsOf));
  const held = Math.max(...shares);
  expect(held).toBeGreaterThan(DRAIN_BATCHES * DRAIN_BATCH_RECORDS);
  const at = shares.indexOf(held);
  const [first, source, dataDir] = [vaults[at]!, clients[at] as TestClient, folders[at]!];
  await until(async () => (await source.stats(SOON_MS)).disk?.queuedRecords === 0, "its disk");
  const others = async (): Promise<number> => {
    const rest = clients.filter((client) => client !== source);
    const counts = await Promise.all(rest.map(recordsOf));
    return counts.reduce((sum, count) => sum + count, 0);
  };
  const before = await others();
  const config = configOf(vaults);
  const program = drain(config, first, "--rate", "500kB");
  await until(async () => (await others()) > before, "some to have moved");
  process.kill(first.pid, "SIGKILL");
  const { exitCode, stderr } = await program.ended();
  expect(exitCode).toBe(1);
  expect(stderr).toMatch(/records moved .*were there already/);
  const moved = (await others()) - before;
  expect(moved).toBeLessThan(held);

  const again = await startVaultProcess(first.port, first.host, { dataDir });
  const client = openClient(again);
  await until(async () => (await recordsOf(client)) === held, "what it had on disk");
  const outcome = await drain(config, again).ended();
  expect(outcome.exitCode).toBe(0);
  const { drained } = JSON.parse(outcome.stdout) as Result;
  expect(drained).toMatchObject([{ present: { records: moved }, left: {} }]);
  expect(drained[0]!.moved.records).toBeGreaterThanOrEqual(held - moved);
  process.kill(again.pid, "SIGKILL");
  const after = await sidecarOf(vaults.filter((vault) => vault !== first));
  expect(await foundBy(after.sidecar, blocks, "after")).toBe(BLOCKS);
});

test("F75 full vaults keep the beginnings of what comes, a vault that may not be emptied says why, and --end undoes it", async () => {
  const vaults = [
    await startVaultProcess(),
    await startVaultProcess(0, "127.0.0.1", { bytes: 16 * MIB }),
  ];
  const { sidecar, clients } = await sidecarOf(vaults.slice(0, 1));
  const wide = { ...LONG, groups: [makeGroup({ layers: 16 })] };
  const engine = await FakeEngine.start(sidecar.socketPath, wide);
  const blocks = makeBlocks("full", BLOCKS, 8 * PAGE);
  await saveAll({ engine, sidecar }, blocks);
  const [source] = clients as [TestClient];
  expect(await recordsOf(source)).toBe(BLOCKS);

  const alone = await drain(configOf(vaults.slice(0, 1)), vaults[0]!).ended();
  expect([alone.exitCode, alone.stderr]).toEqual([2, expect.stringContaining("nobody could take")]);
  const strange = await drain(configOf(vaults.slice(1)), vaults[0]!).ended();
  expect([strange.exitCode, strange.stderr]).toEqual([
    2,
    expect.stringContaining("is no vault of"),
  ]);

  const config = configOf(vaults);
  const { exitCode, stdout } = await drain(config, vaults[0]!).ended();
  // Else no vault of the pool would take a record.
  const last = await drain(config, vaults[1]!).ended();
  expect([last.exitCode, last.stderr]).toEqual([2, expect.stringContaining("drains too")]);
  expect(await openClient(vaults[1]!).put(NAMESPACE, makeRecords(1), SOON_MS)).not.toEqual([
    ItemStatus.DRAINING,
  ]);
  const { drained } = JSON.parse(stdout) as Result;
  const [done] = drained as [Result["drained"][number]];
  expect([exitCode, done.moved.records]).toEqual([0, BLOCKS]);
  expect(done.evicted).toBeGreaterThan(BLOCKS / 3);
  const after = await sidecarOf(vaults.slice(1));
  // Batches under way arrive side by side.
  const kept = BLOCKS - done.evicted - DRAIN_BATCH_RECORDS;
  expect(await foundBy(after.sidecar, blocks, "after", wide)).toBeGreaterThan(kept);

  // It had never heard of that model before.
  const flushed = await after.clients[0]!.flush(null, SOON_MS, "kv", "test/model");
  expect(flushed.records).toBeGreaterThan(16);

  await until(() => source.isDraining, "the sidecar to hear of it");
  expect((await drain(config, vaults[0]!, "--end").ended()).exitCode).toBe(0);
  await until(() => !source.isDraining, "the sidecar to hear of its end");
});

test("states move by their own hash, and blocks behind a hole of their run stay, which is said; states need no others", async () => {
  const vaults = await Promise.all([0, 1, 2].map(() => openVault({ recordClass: "both" })));
  const list = JSON.stringify(vaults.map(({ address }) => address));
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, `[cluster]\nkv_cold = ${list}\nssm_cold = ${list}\n`);
  const isThere = (_record: TestRecord, at: number): boolean => at !== 17;
  const states = makeRecords(20, { recordClass: "ssm", group: 1 }).filter(isThere);
  const blocks = makeRecords(20).filter(isThere);
  const [kv, ssm] = [openClient(vaults[0]!), openClient(vaults[0]!, "ssm")];
  await kv.put(NAMESPACE, blocks, SOON_MS);
  await ssm.put(NAMESPACE, states, SOON_MS);
  const argv = ["vaults", "drain", vaults[0]!.address, "--config", config];
  const { exitCode, stdout } = await runInside(argv);
  expect(exitCode).toBe(0);
  expect(stdout).toMatch(/^kv: 17 records moved .*\n +2 stayed .*blocks before them are gone/);
  expect(stdout).toMatch(/ssm: 19 records moved [^\n]*\n\S/);
  const clients = vaults.slice(1).map((vault) => openClient(vault, "ssm"));
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  const pool = new Pool("ssm", { clients });
  for (const { key } of states) {
    const hash = key.subarray(0, HASH_BYTES);
    const owner = clients[pool.homeOf(hash, hash).owner]!;
    expect([...(await owner.lookup(NAMESPACE, key, SOON_MS))]).toEqual([1]);
  }
});

test("shared memory before a pool is no part of the drain, and cannot be drained itself", async () => {
  const vaults = await Promise.all([0, 1].map(() => openVault()));
  const memory = `shm:${join(testDirectory(), "region")}`;
  const config = configOf([{ address: memory }, ...vaults]);
  const source = openClient(vaults[0]!);
  await source.put(NAMESPACE, makeRecords(5), SOON_MS);
  const argv = ["vaults", "drain", vaults[0]!.address, "--config", config];
  const { exitCode, stdout } = await runInside(argv);
  expect([exitCode, stdout]).toEqual([0, expect.stringMatching(/^kv: 5 records moved/)]);
  const refused = await runInside(["vaults", "drain", memory, "--config", config]);
  expect([refused.exitCode, refused.stderr]).toEqual([
    2,
    expect.stringContaining("is memory of this machine, and no member of a pool"),
  ]);
});
