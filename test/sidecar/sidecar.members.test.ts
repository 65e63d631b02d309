// Owns the proof that a pool follows a DNS name without a restart: who comes gets its share, who leaves is asked on, and its records move.
import { expect, test, vi } from "vitest";
import { addressesOf } from "../../src/cli/names.ts";
import type * as Again from "../../src/limits-again.ts";
import type * as Limits from "../../src/limits-pool.ts";
import { RUN_BLOCKS } from "../../src/limits-pool.ts";
import type { MemberSource } from "../../src/sidecar/vaults/seats.ts";
import { startDnsServer } from "../support/dns-server.ts";
import { expectNoLeak, saveAll } from "../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import type { Block } from "../support/shim-client.ts";
import { openSidecar } from "../support/sidecars.ts";
import type { TestSidecar } from "../support/sidecars.ts";
import { startVaultProcess } from "../support/vault-process.ts";
import type { Place } from "../support/vault-process.ts";
import { openClient, SOON_MS, until } from "../support/vaults.ts";

vi.mock("../../src/limits-pool.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  MEMBERS_EVERY_MS: 50,
}));
vi.mock("../../src/limits-again.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Again>()),
  AGAIN_PAUSE_MS: 60,
  AGAIN_ASK_MS: 100,
}));

const PAGE = 8192;
const BLOCKS = 12 * RUN_BLOCKS + 5;
const LONG = { maxModelLen: 16 * BLOCKS };
const NAME = "vaults.example";

/** Of this sidecar, by the last number of a vault's address. */
const sharesOf = (sidecar: TestSidecar): Record<string, number> =>
  Object.fromEntries(
    sidecar.status().vaults.kv.map(({ address, share }) => [address.split(/[.:]/)[3]!, share]),
  );

/** An engine without anything of its own: all must come from vaults. */
async function expectAllFound(
  sidecar: TestSidecar,
  name: string,
  blocks: readonly Block[],
): Promise<FakeEngine> {
  const engine = await FakeEngine.start(sidecar.socketPath, { ...LONG, engine: name });
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect([name, view.reason, view.placed.get(0)?.length]).toEqual([name, "complete", BLOCKS]);
  expect(blocks.filter((block, at) => !engine.holds(view, at, block))).toEqual([]);
  engine.release(view.plan);
  return engine;
}

test("F35 the vaults of a name come and go: nothing that is held is missed, and it moves to its new owners", async () => {
  const { names, resolver, asked, close } = await startDnsServer();
  const vaults: Place[] = [await startVaultProcess()];
  const [{ port }] = vaults as [Place];
  for (const host of ["127.0.0.2", "127.0.0.3"]) vaults.push(await startVaultProcess(port, host));
  const records = async (at: number): Promise<number> => {
    const client = openClient(vaults[at]!);
    const stats = await client.stats(SOON_MS);
    client.close();
    return stats.records;
  };
  names.set(NAME, ["127.0.0.1", "127.0.0.2"]);
  const address = { host: NAME, port, text: `dns:${NAME}:${port}` };
  const members: MemberSource = {
    list: async () => ({ kv: await addressesOf(address, resolver), ssm: [] }),
    connect: (name, at) => openClient({ address: at }, name),
  };
  const sidecar = await openSidecar({ when: "always", waitMs: 30_000, members });
  await until(() => sharesOf(sidecar)["2"]! > 0, "the vaults of the name");
  const engine = await FakeEngine.start(sidecar.socketPath, LONG);
  const isGreeted = (): boolean => sidecar.status().vaults.kv.every(({ state }) => state === "up");
  await until(isGreeted, "their greeting");
  const blocks = makeBlocks("named", BLOCKS, PAGE);
  await saveAll({ engine, sidecar }, blocks);
  expect((await records(0)) + (await records(1))).toBe(BLOCKS);

  // One comes: it owns a third, and holds nothing yet.
  names.set(NAME, ["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
  await until(() => sharesOf(sidecar)["3"]! > 0.2, "the one that came");
  const reader = await expectAllFound(sidecar, "after one came", blocks);
  await until(async () => (await records(2)) >= 2 * RUN_BLOCKS, "what it owns now to come to it");

  // One leaves: it owns nothing, is asked on, and what it held moves to the others.
  names.set(NAME, ["127.0.0.2", "127.0.0.3"]);
  await until(() => sharesOf(sidecar)["1"] === 0, "the one that left");
  await expectAllFound(sidecar, "after one left", blocks);
  const rest = async (): Promise<number> => (await records(1)) + (await records(2));
  await until(async () => (await rest()) >= BLOCKS, "what it held to move");
  process.kill(vaults[0]!.pid, "SIGKILL");
  await expectAllFound(sidecar, "after it is gone", blocks);

  // A name that nobody answers for leaves everything as it is.
  close();
  const before = asked();
  await new Promise((resolve) => {
    setTimeout(resolve, 700);
  });
  expect(asked()).toBe(before);
  const shares = sharesOf(sidecar);
  expect([shares["1"], shares["2"]! + shares["3"]!]).toEqual([0, 1]);
  await expectNoLeak({ engine: reader, sidecar });
});
