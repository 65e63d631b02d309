// Owns the proof that a vault's weight is one for all: each sidecar hears of it, what it owned is found, and a restart keeps it.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import type * as Limits from "../../../src/base/limits/general.ts";
import { runInside } from "../../support/command-line.ts";
import { saveAll } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";
import { openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

/** Who is not told hears of nothing before the test gives up. */
vi.mock("../../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  WATCH_HOLD_MS: 600_000,
  WATCH_TIMEOUT_MS: 700_000,
  // Vaults, sidecars and command share one loop here: on a busy machine it takes longer than they do apart.
  STATUS_TIMEOUT_MS: 40_000,
}));

const BLOCKS = 384;
const LONG = { maxModelLen: 16 * BLOCKS };

test("F86 a weight changes shares at every sidecar while prompts are read, loses nothing, and outlives its vault", async () => {
  const flushFile = join(testDirectory(), "flushes.json");
  const slow = await openVault({ flushFile });
  const vaults = [slow, await openVault(), await openVault()];
  const list = JSON.stringify(vaults.map(({ address }) => address));
  const start = async (): Promise<{
    clients: ReturnType<typeof openClient>[];
    config: string;
    sidecar: Awaited<ReturnType<typeof openSidecar>>;
  }> => {
    const clients = vaults.map((vault) => openClient(vault));
    await Promise.all(clients.map((client) => client.hello(SOON_MS)));
    const asked = { when: "always", waitMs: 20_000 } as const;
    const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...asked });
    const config = join(testDirectory(), "tierkv.toml");
    const socket = `[sidecar]\nsocket = "${sidecar.socketPath}"\n`;
    writeFileSync(config, `[cluster]\nkv_cold = ${list}\n${socket}`);
    return { clients, config, sidecar };
  };
  const [one, other] = [await start(), await start()];
  const sharesOf = async (config: string): Promise<number[]> => {
    const { stdout } = await runInside(["vaults", "ls", "--json", "--config", config]);
    return (JSON.parse(stdout) as { vaults: { share: number }[] }).vaults.map(({ share }) => share);
  };
  const before = await sharesOf(one.config);
  expect(before[0]).toBeGreaterThan(0.2);

  const engine = await FakeEngine.start(one.sidecar.socketPath, LONG);
  await FakeEngine.start(other.sidecar.socketPath, LONG);
  const blocks = makeBlocks("weighed", BLOCKS, 8192);
  await saveAll({ engine, sidecar: one.sidecar }, blocks);
  const argv = ["vaults", "weight", slow.address, "0.1", "--config", one.config];
  const weighed = await runInside(argv);
  expect([weighed.exitCode, weighed.stderr]).toEqual([0, ""]);
  expect(weighed.stdout).toMatch(/counts 0\.1 times what it has room for; all/);
  for (const { config } of [one, other]) {
    await until(async () => ((await sharesOf(config))[0] ?? 1) < 0.08, "the sidecar to hear of it");
  }
  expect(await sharesOf(one.config)).toEqual(await sharesOf(other.config));
  const argvOfList = ["vaults", "ls", "--config", one.config];
  const isShown = async (): Promise<boolean> =>
    / \d\.\d % x0\.1 /.test((await runInside(argvOfList)).stdout);
  await until(isShown, "the weight in the list");
  for (const [at, { sidecar }] of [one, other].entries()) {
    const reader = await FakeEngine.start(sidecar.socketPath, { ...LONG, engine: `r${at}` });
    const view = await reader.done(reader.prefetch(hashesOf(blocks)));
    expect(view.placed.get(0)?.length).toBe(BLOCKS);
    reader.release(view.plan);
  }

  await slow.close();
  const port = Number(slow.address.split(":")[1]);
  vaults[0] = await openVault({ flushFile, port });
  const late = await start();
  expect(await sharesOf(late.config)).toEqual(await sharesOf(one.config));
});

test("a weight that is none, and a vault that is not known, are refused", async () => {
  const vault = await openVault();
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, `[cluster]\nkv_cold = "${vault.address}"\n`);
  const run = async (...argv: string[]): Promise<{ exitCode: number | null; stderr: string }> =>
    await runInside(["vaults", "weight", ...argv, "--config", config]);
  for (const weight of ["0", "101", "much", " "]) {
    expect(await run(vault.address, weight)).toMatchObject({ exitCode: 2 });
  }
  expect((await run("127.0.0.9:1", "2")).stderr).toMatch(/is no vault of/);
  for (const store of ["valkeys://127.0.0.9:6379", "s3://bucket/prefix", "shm:/dev/shm/x"]) {
    const { exitCode, stderr } = await run(store, "2");
    expect([exitCode, stderr]).toEqual([2, expect.stringContaining("only a vault has a weight")]);
  }
});
