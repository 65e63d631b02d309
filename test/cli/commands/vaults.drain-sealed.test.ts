// Owns the proof that sealed records move, too, and go where two copies of each are looked for.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, expect, test } from "vitest";
import { recordKeysSet } from "../../../src/base/native.ts";
import { Program } from "../../support/command-line.ts";
import { saveAll } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";
import { openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

const PAGE = 8192;
const BLOCKS = 197;
const KEY = "5a".repeat(32);
const OPTIONS = { when: "always", waitMs: 20_000, redundancy: "copies:2" } as const;
const LONG = { maxModelLen: 16 * BLOCKS };

beforeAll(() => recordKeysSet(Buffer.from(KEY)));

test("F73 without the keys sealed blocks stay and say why; with them both copies of each are found without the vault", async () => {
  const vaults = [await openVault(), await openVault(), await openVault()];
  const clients = vaults.map((vault) => openClient(vault));
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...OPTIONS });
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  const engine = await FakeEngine.start(sidecar.socketPath, LONG);
  const blocks = makeBlocks("sealed", BLOCKS, PAGE);
  await saveAll({ engine, sidecar }, blocks);
  await until(() => sidecar.counters.get("replicas_saved") === BLOCKS, "second copies");
  const directory = testDirectory();
  const [config, keys] = [join(directory, "tierkv.toml"), join(directory, "keys")];
  writeFileSync(keys, `${KEY}\n`, { mode: 0o600 });
  const drain = async (more: string): Promise<{ exitCode: number | null; stdout: string }> => {
    const list = JSON.stringify(vaults.map(({ address }) => address));
    const text = `[cluster]\nkv_cold = ${list}\nredundancy = "copies:2"\n${more}`;
    writeFileSync(config, text);
    return await new Program(["vaults", "drain", vaults[0]!.address, "--config", config]).ended();
  };
  const held = vaults[0]!.stats().records;
  const unopened = await drain("");
  expect([unopened.exitCode, unopened.stdout]).toEqual([
    1,
    expect.stringMatching(new RegExp(`0 records moved.*\\n +${held} stayed.*record_keys`)),
  ]);

  const moved = await drain(`[sidecar]\nrecord_keys = "${keys}"\n`);
  expect([moved.exitCode, moved.stdout]).toEqual([0, expect.not.stringContaining("stayed")]);
  const records = vaults.slice(1).map((vault) => vault.stats().records);
  expect(records).toEqual([BLOCKS, BLOCKS]);
  await vaults[0]!.close();
  const others = vaults.slice(1).map((vault) => openClient(vault));
  const after = await openSidecar({ vaults: { kv: others, ssm: null }, ...OPTIONS });
  const reader = await FakeEngine.start(after.socketPath, LONG);
  const view = await reader.done(reader.prefetch(hashesOf(blocks)));
  expect(view.placed.get(0)?.length).toBe(BLOCKS);
  expect(blocks.filter((block, at) => !reader.holds(view, at, block))).toEqual([]);
});
