// Owns the proof that with parity a pool of real vault processes loses nothing with any one of them, and never gives wrong bytes, however many records are wrong.
import { afterEach, expect, test, vi } from "vitest";
import type { VaultClient } from "../../src/client/vault-client.ts";
import { armFailpoints } from "../../src/failpoint.ts";
import type * as Again from "../../src/limits-again.ts";
import { RUN_BLOCKS } from "../../src/limits-pool.ts";
import { expectNoLeak, saveAll } from "../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import type { Block, PlanView } from "../support/shim-client.ts";
import { openSidecar } from "../support/sidecars.ts";
import type { TestSidecar, TestSidecarOptions } from "../support/sidecars.ts";
import { startVaultProcess } from "../support/vault-process.ts";
import type { Place } from "../support/vault-process.ts";
import { closeAfterTest, logger, openClient, SOON_MS, until } from "../support/vaults.ts";

vi.mock("../../src/limits-again.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Again>()),
  AGAIN_PAUSE_MS: 60,
  AGAIN_ASK_MS: 100,
}));

const PAGE = 8192;
const BLOCKS = 12 * RUN_BLOCKS;
const LONG = { maxModelLen: 16 * (BLOCKS + RUN_BLOCKS) };
const PARITY = { when: "always", waitMs: 30_000, redundancy: "parity" } as const;

const arm = (action: string): void =>
  armFailpoints({ text: `sidecar.fetch.begun=${action}`, isOnNetwork: false, logger });
afterEach(() => arm("off"));

interface Scene {
  vaults: Place[];
  clients: VaultClient[];
  sidecar: TestSidecar;
  engine: FakeEngine;
  blocks: Block[];
}

interface Shape extends TestSidecarOptions {
  count?: number;
  blocks?: number;
}

/** As many vaults, and a prompt that lies on each of them, with all its parity records. */
async function open(name: string, options: Shape = {}): Promise<Scene> {
  const { count = 3, blocks: length = BLOCKS } = options;
  const vaults: Place[] = [];
  for (let vault = 0; vault < count; vault += 1) vaults.push(await startVaultProcess());
  const clients = vaults.map((vault) => openClient(vault));
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...PARITY, ...options });
  // What waits for a vault's first word may be from before a flush, and is dropped.
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  const engine = await FakeEngine.start(sidecar.socketPath, LONG);
  const blocks = makeBlocks(name, length, PAGE);
  await saveAll({ engine, sidecar }, blocks);
  const whole = Math.floor(length / RUN_BLOCKS) * RUN_BLOCKS;
  const parity = whole / (count < 5 ? 2 : 4);
  await until(() => sidecar.counters.get("parity_saved") >= parity, "parity records");
  return { vaults, clients, sidecar, engine, blocks };
}

const recordsOf = async (clients: readonly VaultClient[]): Promise<number[]> =>
  await Promise.all(clients.map(async (client) => (await client.stats(SOON_MS)).records));

/** All of it came, with the right bytes. */
function expectWhole({ engine, blocks }: Pick<Scene, "engine" | "blocks">, view: PlanView): void {
  expect([view.reason, view.placed.get(0)?.length ?? 0]).toEqual(["complete", blocks.length]);
  expect(blocks.filter((block, at) => !engine.holds(view, at, block))).toEqual([]);
  engine.release(view.plan);
}

/** Another sidecar, which does not know where anything was. */
async function openReader(
  { vaults }: Scene,
  options: TestSidecarOptions = {},
): Promise<Pick<Scene, "engine" | "sidecar">> {
  const others = vaults.map((vault) => openClient(vault));
  const sidecar = await openSidecar({ vaults: { kv: others, ssm: null }, ...PARITY, ...options });
  return { sidecar, engine: await FakeEngine.start(sidecar.socketPath, LONG) };
}

test.each([
  { count: 3, width: 2 },
  { count: 4, width: 2 },
  { count: 5, width: 4 },
])(
  "F78 parity over $count vaults: one record more for $width, and with any one killed no block is missing",
  async ({ count, width }) => {
    const scene = await open(`parity-${count}`, { count });
    const { vaults, clients, sidecar, engine, blocks } = scene;
    const { counters } = sidecar;
    const records = await recordsOf(clients);
    expect(records.reduce((sum, of) => sum + of, 0)).toBe(BLOCKS + BLOCKS / width);
    expect(counters.get("parity_incomplete")).toBe(0);
    process.kill(vaults[1]!.pid, "SIGKILL");
    // The first one may be what finds out that it is gone.
    expectWhole(scene, await engine.done(engine.prefetch(hashesOf(blocks))));
    expect(counters.get("lookup_hits")).toBe(BLOCKS);
    expect(counters.get("blocks_rebuilt")).toBeGreaterThan(0);
    const reader = await openReader(scene);
    const view = await reader.engine.done(reader.engine.prefetch(hashesOf(blocks)));
    expectWhole({ ...reader, blocks }, view);
    expect(reader.sidecar.counters.get("rebuilds_failed")).toBe(0);
    await expectNoLeak(reader);
  },
);

test.each([
  { fault: "killed", signal: "SIGKILL", stallMs: 5000 },
  { fault: "paused", signal: "SIGSTOP", stallMs: 500 },
] as const)(
  "F78 parity: a vault that is $fault in mid-restore leaves the restore whole",
  async ({ fault, signal, stallMs }) => {
    const scene = await open(fault, { stallMs });
    const { vaults, sidecar, engine, blocks } = scene;
    arm("sleep(400)");
    const plan = engine.prefetch(hashesOf(blocks));
    // Known to be held, and not asked for yet.
    await until(() => sidecar.counters.get("lookup_hits") === BLOCKS, "the look-up");
    const { pid } = vaults[2]!;
    process.kill(pid, signal);
    closeAfterTest({ close: () => void (signal === "SIGSTOP" && process.kill(pid, "SIGCONT")) });
    expectWhole(scene, await engine.done(plan));
    expect(sidecar.counters.get("blocks_rebuilt")).toBeGreaterThan(0);
    await expectNoLeak({ engine, sidecar });
  },
);

test("F78 parity: two vaults lost are blocks missing, and no wrong bytes", async () => {
  const scene = await open("two");
  const { vaults, blocks } = scene;
  for (const { pid } of vaults.slice(1)) process.kill(pid, "SIGKILL");
  const { engine, sidecar } = await openReader(scene);
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  const placed = view.placed.get(0)?.length ?? 0;
  expect(placed).toBeLessThan(RUN_BLOCKS);
  expect(blocks.slice(0, placed).filter((block, at) => !engine.holds(view, at, block))).toEqual([]);
  engine.release(view.plan);
  await expectNoLeak({ engine, sidecar });
});

test("F78 parity: what is flushed while a vault is down is not brought back by what that one still holds", async () => {
  const scene = await open("gone");
  const { vaults, blocks } = scene;
  const { pid } = vaults[1]!;
  process.kill(pid, "SIGSTOP");
  closeAfterTest({ close: () => process.kill(pid, "SIGCONT") });
  for (const at of [0, 2]) await openClient(vaults[at]!).flush(null, SOON_MS);
  await until(() => scene.sidecar.counters.get("flushes") >= 2, "the flush to be heard of");
  process.kill(pid, "SIGCONT");
  const held = await recordsOf(scene.clients);
  expect([held[0], held[2]]).toEqual([0, 0]);
  expect(held[1]).toBeGreaterThan(0);
  const reader = await openReader(scene);
  const view = await reader.engine.done(reader.engine.prefetch(hashesOf(blocks)));
  expect(reader.sidecar.counters.get("blocks_rebuilt")).toBe(0);
  // What the paused one alone was not told of, up to the first block of another.
  expect(view.placed.get(0)?.length ?? 0).toBeLessThan(RUN_BLOCKS);
});

test("F78 parity: a vault that came back empty is offered what it held", async () => {
  const scene = await open("empty");
  const { clients, sidecar, engine, blocks } = scene;
  const { pid, port } = scene.vaults[1]!;
  process.kill(pid, "SIGKILL");
  await startVaultProcess(port);
  const held = (): Promise<number> =>
    clients[1]!.stats(SOON_MS).then(
      ({ records }) => records,
      () => -1,
    );
  await until(async () => (await held()) === 0, "an empty vault");
  expectWhole(scene, await engine.done(engine.prefetch(hashesOf(blocks))));
  const rebuilt = sidecar.counters.get("blocks_rebuilt");
  expect(rebuilt).toBeGreaterThan(0);
  await until(async () => (await held()) >= rebuilt, "all that it held of blocks");
});
