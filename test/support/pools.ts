// Owns a scene for pool tests: vault processes, a sidecar with redundancy, an engine, and a prompt on all vaults.
import { expect } from "vitest";
import { armFailpoints } from "../../src/base/failpoint.ts";
import type { VaultClient } from "../../src/client/vault/vault-client.ts";
import { expectNoLeak, saveAll } from "./scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "./shim-client.ts";
import type { Block, PlanView } from "./shim-client.ts";
import { openSidecar } from "./sidecars.ts";
import type { TestSidecar, TestSidecarOptions } from "./sidecars.ts";
import { startVaultProcess } from "./vault-process.ts";
import type { Place } from "./vault-process.ts";
import { closeAfterTest, logger, openClient, SOON_MS, until } from "./vaults.ts";

const PAGE = 8192;
/** Blocks of a prompt of twelve runs. */
export const BLOCKS: number = 192;
const LONG = { maxModelLen: 16 * (BLOCKS + 16) };
const PATIENT = { when: "always", waitMs: 30_000 } as const;

export interface Pool {
  vaults: Place[];
  clients: VaultClient[];
  sidecar: TestSidecar;
  engine: FakeEngine;
  blocks: Block[];
  options: PoolOptions;
}

export interface PoolOptions extends TestSidecarOptions {
  /** Number of vaults, default three. */
  count?: number;
  /** Blocks of the prompt. */
  blocks?: number;
}

export async function openPool(name: string, options: PoolOptions): Promise<Pool> {
  const vaults: Place[] = [];
  const { count = 3, blocks: length = BLOCKS } = options;
  for (let vault = 0; vault < count; vault += 1) vaults.push(await startVaultProcess());
  const clients = vaults.map((vault) => openClient(vault));
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...PATIENT, ...options });
  // Greeted first, because saves that wait for a vault's hello may predate a flush and be dropped.
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  const engine = await FakeEngine.start(sidecar.socketPath, LONG);
  const blocks = makeBlocks(name, length, PAGE);
  await saveAll({ engine, sidecar }, blocks);
  return { vaults, clients, sidecar, engine, blocks, options };
}

/** Opens the same vaults through a sidecar without any knowledge of them. */
export async function openReader(pool: Pool): Promise<Pool> {
  const { redundancy } = pool.options;
  const clients = pool.vaults.map((vault) => openClient(vault));
  const vaults = { kv: clients, ssm: null };
  const sidecar = await openSidecar({
    vaults,
    ...PATIENT,
    ...(redundancy === undefined ? {} : { redundancy }),
  });
  return { ...pool, clients, sidecar, engine: await FakeEngine.start(sidecar.socketPath, LONG) };
}

export const recordsOf = async (clients: readonly VaultClient[]): Promise<number[]> =>
  await Promise.all(clients.map(async (client) => (await client.stats(SOON_MS)).records));

/** Asks for the whole prompt. */
export const askFor = ({ engine, blocks }: Pool): Promise<PlanView> =>
  engine.done(engine.prefetch(hashesOf(blocks)));

/** Expects that all of it came with the right bytes. */
export function expectWhole({ engine, blocks }: Pool, view: PlanView): void {
  expect([view.reason, view.placed.get(0)?.length ?? 0]).toEqual(["complete", blocks.length]);
  expect(blocks.filter((block, at) => !engine.holds(view, at, block))).toEqual([]);
  engine.release(view.plan);
}

export const VAULT_FAULTS = [
  { fault: "killed", signal: "SIGKILL", stallMs: 5000 },
  { fault: "paused", signal: "SIGSTOP", stallMs: 500 },
] as const;

const arm = (action: string): void =>
  armFailpoints({ text: `sidecar.fetch.begun=${action}`, isOnNetwork: false, logger });

/** Signals a vault between look-up and fetch and expects a whole restore; `counter` shows the rescue. */
export async function expectWholeAfter(
  pool: Pool,
  signal: "SIGKILL" | "SIGSTOP",
  counter: string,
): Promise<void> {
  const { vaults, sidecar, engine, blocks } = pool;
  closeAfterTest({ close: () => arm("off") });
  arm("sleep(400)");
  const plan = engine.prefetch(hashesOf(blocks));
  // True once all are known to be held, before they are fetched.
  const isFound = (): boolean => sidecar.counters.get("lookup_hits") === blocks.length;
  await until(isFound, "the look-up");
  const { pid } = vaults[2]!;
  process.kill(pid, signal);
  closeAfterTest({ close: () => void (signal === "SIGSTOP" && process.kill(pid, "SIGCONT")) });
  expectWhole(pool, await engine.done(plan));
  expect(sidecar.counters.get(counter as "blocks_failed_over")).toBeGreaterThan(0);
  await expectNoLeak({ engine, sidecar });
}

/** Restarts the second vault empty; returns a function for its records, -1 while it is away. */
export async function emptyTheSecond({ vaults, clients }: Pool): Promise<() => Promise<number>> {
  const { pid, port } = vaults[1]!;
  process.kill(pid, "SIGKILL");
  await startVaultProcess(port);
  const held = (): Promise<number> =>
    clients[1]!.stats(SOON_MS).then(
      ({ records }) => records,
      () => -1,
    );
  await until(async () => (await held()) === 0, "an empty vault");
  return held;
}
