// Owns the proof that a restore leaves a receipt, that vaults are found to hold what it says, and that what is not so is refused or named.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { Account } from "../../../src/sidecar/trace/decisions.ts";
import { freshPath, machineOf, PAGE, shapeOf } from "../../support/bundles.ts";
import { runInside } from "../../support/command-line.ts";
import { BLOCKS, NAME, openScene, TOKENS, verify, written } from "../../support/receipts.ts";
import { saveAll } from "../../support/scene.ts";
import { FakeEngine, makeBlocks, makeGroup } from "../../support/shim-client.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { until } from "../../support/vaults.ts";

test.each(["raw", "lossless", "int8", "int8-mean-had"] as const)(
  "F96 a restore of %s records leaves a receipt, and the vaults hold what it says",
  async (kv) => {
    const scene = await openScene({ kv });
    await written(scene);
    const { exitCode, result } = await verify(scene, NAME);
    expect(result).toMatchObject({
      request: "request",
      model: "test/model",
      tokens: { from: 32, to: TOKENS },
      groups: [{ group: 0, class: "kv", first: 2, blocks: BLOCKS - 2 }],
      blocks: BLOCKS - 2,
      same: 32,
      differs: 0,
      gone: 0,
    });
    const numbers = (result["checked"] as { block: number }[]).map(({ block }) => block);
    expect(numbers.at(-1)).toBe(BLOCKS - 1);
    expect(new Set(numbers).size).toBe(32);
    expect(exitCode).toBe(0);
  },
);

test("F96 what a vault holds otherwise is named, and what it lost is not called the same", async () => {
  const scene = await openScene();
  await written(scene);
  const { sidecar, config, vaults } = scene;
  await runInside(["flush", "--yes", "--config", config]);
  expect(vaults.map((vault) => vault.stats().records)).toEqual([0, 0]);
  const lost = await verify(scene, NAME);
  expect([lost.exitCode, lost.result["same"], lost.result["gone"]]).toEqual([1, 0, 32]);

  // Under the same hashes other bytes in the last ten.
  const again = await FakeEngine.start(sidecar.socketPath, { ...shapeOf(BLOCKS), engine: "again" });
  const [right, wrong] = [makeBlocks("prompt", BLOCKS, PAGE), makeBlocks("other", BLOCKS, PAGE)];
  const mixed = right.map((block, at) =>
    at < BLOCKS - 10 ? block : { ...block, pages: wrong[at]!.pages },
  );
  await saveAll({ engine: again, sidecar }, mixed);
  const other = await verify(scene, NAME);
  const checked = other.result["checked"] as { block: number; verdict: string }[];
  const differing = checked.filter(({ verdict }) => verdict === "differs");
  expect(differing.map(({ block }) => block)).toEqual(
    checked.map(({ block }) => block).filter((block) => block >= BLOCKS - 10),
  );
  expect(differing.length).toBeGreaterThan(2);
  expect([other.exitCode, other.result["gone"]]).toEqual([1, 0]);
  const shown = await runInside(["verify", NAME, "--config", config]);
  expect(shown.stdout).toMatch(
    /of 32 records in its sample \d+ are the same, [3-9] differ, 0 are gone/,
  );
  expect(shown.stdout).toContain(`differs: block ${BLOCKS - 1} of group 0`);
});

test("F96 a receipt that was changed, of a foreign name, or of an unknown key, is refused by name", async () => {
  const scene = await openScene();
  await written(scene);
  const text = readFileSync(join(scene.dir, `${NAME}.json`), "utf8");
  const changed = freshPath();
  writeFileSync(changed, text.replace(`"to": ${TOKENS}`, `"to": ${TOKENS + 16}`));
  const tampered = await verify(scene, changed);
  expect(tampered.exitCode).toBe(1);
  expect(tampered.stderr).toMatch(/its signature is wrong.*RECEIPT_REFUSED/);

  for (const path of [testDirectory(), freshPath()]) {
    const { exitCode, stderr } = await verify(scene, path);
    expect([exitCode, stderr]).toEqual([2, expect.stringMatching(/is no (?:such )?file.*USAGE/)]);
  }
  for (const [option, value] of Object.entries({ "--namespace": "0g", "--trust": "abc" })) {
    const wrong = await verify(scene, NAME, option, value);
    expect([wrong.exitCode, wrong.stderr]).toEqual([
      2,
      expect.stringContaining(`${option} = "${value}": not`),
    ]);
  }

  const foreign = await verify(scene, NAME, "--namespace", "ab".repeat(32));
  expect(foreign.stderr).toMatch(
    /it is of namespace [\da-f]{16} .*another model, or other settings/,
  );
  scene.reader.close();
  await until(() => scene.sidecar.status().engines.length === 0, "the engine to leave");
  expect((await verify(scene, NAME)).stderr).toMatch(/no engine here has a name yet/);
  const { signer } = JSON.parse(text) as { signer: string };

  // Another machine, at the same vaults: it knows whom it is told to trust.
  const copy = freshPath();
  writeFileSync(copy, text);
  const there = await machineOf(scene.vaults, {}, `[receipts]\ndir = "${testDirectory()}"\n`);
  await FakeEngine.start(there.sidecar.socketPath, { ...shapeOf(BLOCKS), engine: "elsewhere" });
  expect((await verify(there, copy)).stderr).toMatch(
    new RegExp(`signed by ${signer}, which is no key of this machine's or of --trust`),
  );
  expect((await verify(there, copy, "--trust", signer)).result).toMatchObject({ same: 32 });
  expect((await verify(there, NAME)).stderr).toMatch(/there is none of that name/);
});

test("without being asked there is none, unless all get one; a folder that cannot be written costs receipts alone", async () => {
  const quiet = await openScene({}, "");
  await until(() => quiet.sidecar.status().ledger.restores === 1, "the restore to be over");
  expect((quiet.sidecar.explain("", 1) as [Account])[0].receipt).toBe("");
  const each = await openScene({ receipts: { when: "always" } }, "");
  await written(each);
  const [{ receipt }] = each.sidecar.explain("", 1) as [Account];
  expect((await verify(each, receipt)).result).toMatchObject({ same: 32 });
  const explained = await runInside(["explain", "--config", each.config]);
  expect(explained.stdout).toContain(`receipt: tierkv verify ${receipt}`);
  const broken = await openScene({ receipts: { dir: "/proc/nothing" } });
  await until(() => broken.sidecar.counters.get("receipts_dropped") === 1, "it to be dropped");
});

test("two ranks' shards, and each group, are in the sample", async () => {
  const groups = [makeGroup({})];
  const scene = await openScene({}, NAME, { world: 2, groups });
  await written(scene);
  const { result } = await verify(scene, NAME);
  const shards = (result["checked"] as { shard: number }[]).map(({ shard }) => shard);
  expect([shards.filter((one) => one === 0).length, shards.length]).toEqual([16, 32]);
  expect(result).toMatchObject({ same: 32, blocks: BLOCKS - 2 });
});
