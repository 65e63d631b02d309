// Owns the proof that with two copies a pool of real vault processes loses nothing with any one of them: killed, hung, or come back empty.
import { afterEach, expect, test, vi } from "vitest";
import type { VaultClient } from "../../src/client/vault-client.ts";
import { armFailpoints } from "../../src/failpoint.ts";
import type * as Again from "../../src/limits-again.ts";
import type * as Limits from "../../src/limits-pool.ts";
import { RUN_BLOCKS } from "../../src/limits-pool.ts";
import { expectNoLeak, saveAll } from "../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import type { Block, PlanView } from "../support/shim-client.ts";
import { openSidecar } from "../support/sidecars.ts";
import type { TestSidecar, TestSidecarOptions } from "../support/sidecars.ts";
import { startVaultProcess } from "../support/vault-process.ts";
import type { Place } from "../support/vault-process.ts";
import { closeAfterTest, logger, openClient, SOON_MS, until } from "../support/vaults.ts";

// Owners keep their parts, however busy the machine is.
vi.mock("../../src/limits-pool.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  LOOKUP_GRACE_MS: 10_000,
}));
vi.mock("../../src/limits-again.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Again>()),
  AGAIN_PAUSE_MS: 60,
  AGAIN_ASK_MS: 100,
}));

const PAGE = 8192;
const BLOCKS = 12 * RUN_BLOCKS + 5;
const LONG = { maxModelLen: 16 * BLOCKS };
const COPIES = { when: "always", waitMs: 30_000, redundancy: "copies:2" } as const;

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

/** Three vaults, and a prompt that lies on each of them. */
async function open(name: string, options: TestSidecarOptions = {}): Promise<Scene> {
  const vaults: Place[] = [];
  for (let count = 0; count < 3; count += 1) vaults.push(await startVaultProcess());
  const clients = vaults.map((vault) => openClient(vault));
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...COPIES, ...options });
  // What waits for a vault's first word may be from before a flush, and is dropped.
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  const engine = await FakeEngine.start(sidecar.socketPath, LONG);
  const blocks = makeBlocks(name, BLOCKS, PAGE);
  await saveAll({ engine, sidecar }, blocks);
  return { vaults, clients, sidecar, engine, blocks };
}

const recordsOf = async (clients: readonly VaultClient[]): Promise<number[]> =>
  await Promise.all(clients.map(async (client) => (await client.stats(SOON_MS)).records));

/** All of it came, with the right bytes. */
function expectWhole({ engine, blocks }: Scene, view: PlanView): void {
  expect([view.reason, view.placed.get(0)?.length ?? 0]).toEqual(["complete", blocks.length]);
  expect(blocks.filter((block, at) => !engine.holds(view, at, block))).toEqual([]);
  engine.release(view.plan);
}

test("F71 two copies: each record lies on two vaults, and with one killed no block is missing", async () => {
  const scene = await open("copies");
  const { vaults, clients, sidecar, engine, blocks } = scene;
  const { counters } = sidecar;
  const records = await recordsOf(clients);
  expect(records.reduce((sum, count) => sum + count, 0)).toBe(2 * BLOCKS);
  expect(counters.get("replicas_saved")).toBe(BLOCKS);
  expect(counters.get("replicas_dropped")).toBe(0);
  expect(counters.get("replicas_sent_bytes")).toBe(counters.get("bytes_sent"));
  process.kill(vaults[1]!.pid, "SIGKILL");
  // The first one may be what finds out that it is gone.
  expectWhole(scene, await engine.done(engine.prefetch(hashesOf(blocks))));
  expect(counters.get("lookup_hits")).toBe(BLOCKS);
  // Another sidecar does not know where anything was.
  const others = vaults.map((vault) => openClient(vault));
  const second = await openSidecar({ vaults: { kv: others, ssm: null }, ...COPIES });
  const reader = await FakeEngine.start(second.socketPath, LONG);
  const view = await reader.done(reader.prefetch(hashesOf(blocks)));
  expectWhole({ ...scene, engine: reader }, view);
  await expectNoLeak({ engine: reader, sidecar: second });
});

test.each([
  { fault: "killed", signal: "SIGKILL", stallMs: 5000 },
  { fault: "paused", signal: "SIGSTOP", stallMs: 500 },
] as const)(
  "F71 two copies: a vault that is $fault in mid-restore leaves the restore whole",
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
    expect(sidecar.counters.get("blocks_failed_over")).toBeGreaterThan(0);
    await expectNoLeak({ engine, sidecar });
  },
);

test("F72 two copies: a vault that came back empty is offered what it held, as owner and as second", async () => {
  const scene = await open("empty");
  const { clients, sidecar, engine, blocks } = scene;
  const before = await recordsOf(clients);
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
  await until(async () => (await held()) === before[1], "all that it held");
  expect(sidecar.counters.get("copies_offered")).toBe(before[1]);
});

test("while a flush is on its way to all vaults, what the last of them still holds is not offered to the first", async () => {
  const { vaults, clients, sidecar, blocks } = await open("halfway");
  const admins = vaults.map((vault) => openClient(vault));
  await admins[0]!.flush(null, SOON_MS);
  const reader = await FakeEngine.start(sidecar.socketPath, { ...LONG, engine: "between" });
  const view = await reader.done(reader.prefetch(hashesOf(blocks)));
  expect(view.placed.get(0)?.length).toBe(BLOCKS);
  reader.release(view.plan);
  // Several looks at what vaults lack.
  await new Promise((resolve) => {
    setTimeout(resolve, 1000);
  });
  for (const admin of admins.slice(1)) await admin.flush(null, SOON_MS);
  expect(await recordsOf(clients)).toEqual([0, 0, 0]);
});
