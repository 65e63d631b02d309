// Owns the proof that a session travels as a bundle from vaults to others, and that what must not travel, or not be taken in, is refused by name.
import { existsSync, writeFileSync } from "node:fs";
import { expect, test } from "vitest";
import type { Account } from "../../../src/sidecar/trace/decisions.ts";
import {
  bundle,
  converse,
  freshPath,
  keyFile,
  machineOf,
  openMachine,
  restored,
  shapeOf,
  SIGNER,
} from "../../support/bundles.ts";
import { Program, runInside } from "../../support/command-line.ts";
import { startFaultProxy } from "../../support/fault-proxy.js";
import { ATTENTION, openHybrid, STATES } from "../../support/hybrids.ts";
import { digest, OTHER_NAMESPACE } from "../../support/records.ts";
import { FakeEngine, makeBlocks, makeGroup } from "../../support/shim-client.ts";
import { closeAfterTest, MIB, openVault, until } from "../../support/vaults.ts";

const BLOCKS = 195;
/** Of every engine here. */
const NAME = digest("namespace of the test").toString("hex");

test("a session of two vaults is restored, byte for byte, beside three others, where it is kept; twice changes nothing", async () => {
  const from = await openMachine(2);
  const { blocks } = await converse(from, "handbook", BLOCKS);
  await converse(from, "other", 8);
  const [sign, seal, path] = [keyFile(), keyFile("2b".repeat(32)), freshPath()];
  const of = ["--session", "handbook", "--sign", sign, "--seal", seal];
  const made = await bundle(from.config, "export", path, ...of);
  expect(made).toMatchObject({
    exitCode: 0,
    result: {
      blocks: BLOCKS,
      records: BLOCKS,
      tokens: 16 * BLOCKS,
      codecs: ["raw"],
      model: "test/model",
      seal: "bundle",
      signer: SIGNER,
      behind: 0,
    },
  });

  const to = await openMachine(3);
  const engine = await FakeEngine.start(to.sidecar.socketPath, shapeOf(BLOCKS));
  const take = ["import", path, "--trust", SIGNER, "--seal", seal, "--for", "2h"];
  const taken = await bundle(to.config, ...take);
  expect(taken).toMatchObject({
    exitCode: 0,
    result: { stored: BLOCKS, present: 0, failed: {}, blocks: BLOCKS },
  });
  engine.close();
  expect(await restored(to, blocks)).toBe(BLOCKS);
  const listed = await runInside(["session", "ls", "--json", "--config", to.config]);
  expect(JSON.parse(listed.stdout)).toMatchObject({
    sessions: [{ name: "handbook", model: "test/model", kept: BLOCKS }],
  });
  await FakeEngine.start(to.sidecar.socketPath, { ...shapeOf(BLOCKS), engine: "third" });
  const again = await bundle(to.config, ...take);
  expect(again.result).toMatchObject({ stored: 0, present: BLOCKS, blocks: BLOCKS });
});

test("a request's prompt goes with its states, to a vault of both; a block that is gone ends it", async () => {
  const scene = await openHybrid();
  const { kv, ssm } = scene;
  const turn = makeBlocks("talk", 8, 8192);
  await scene.store(turn.slice(0, 6), ATTENTION);
  await scene.store(turn.slice(7), ATTENTION);
  await scene.store([turn[1]!, turn[5]!], STATES);
  await scene.ask(turn);
  const [account] = scene.sidecar.explain("", 1) as [Account, ...Account[]];
  expect(account.block).toBe(turn[7]!.hash.toString("hex"));
  const places = `kv_cold = "${kv.address}"\nssm_cold = "${ssm.address}"\n`;
  const config = configWith(places, scene.sidecar.socketPath);
  const [path, sign] = [freshPath(), keyFile()];
  const whole = ["--request", account.req, "--sign", sign, "--unsealed"];
  // Its last block leads back to the one that is not there.
  expect((await bundle(config, "export", path, ...whole)).stderr).toMatch(
    /blocks before it are gone/,
  );
  const upTo = ["--block", turn[5]!.hash.toString("hex"), "--sign", sign, "--unsealed"];
  const made = await bundle(config, "export", path, ...upTo);
  expect(made).toMatchObject({ exitCode: 0, result: { blocks: 6, records: 8, seal: "none" } });

  const both = await openVault({ recordClass: "both" });
  const all = `kv_cold = "${both.address}"\nssm_cold = "${both.address}"\n`;
  const there = configWith(all, scene.sidecar.socketPath);
  const taken = await bundle(there, "import", path, "--trust", SIGNER);
  expect(taken).toMatchObject({ exitCode: 0, result: { stored: 8, blocks: 6 } });
  expect(both.stats().records).toBe(8);
});

function configWith(cluster: string, socket: string): string {
  const path = `${freshPath()}.toml`;
  writeFileSync(path, `[cluster]\n${cluster}[sidecar]\nsocket = "${socket}"\n`);
  return path;
}

test("F88 unsealed records stay, foreign names and keys are refused by name, and nothing of it is stored", async () => {
  const from = await openMachine(1);
  const { engine } = await converse(from, "secret", 20);
  const [sign, seal] = [keyFile(), keyFile("2b".repeat(32))];
  const path = freshPath();
  const refused = async (config: string, ...words: string[]): Promise<string> => {
    const { exitCode, stderr } = await bundle(config, ...words);
    expect(exitCode).toBeGreaterThan(0);
    return stderr;
  };
  const of = ["export", path, "--session", "secret", "--sign", sign];
  expect(await refused(from.config, ...of)).toMatch(/not sealed.*--seal FILE, or say --unsealed/);
  expect(existsSync(path)).toBe(false);
  expect(await refused(from.config, ...of.with(3, "nobody"), "--unsealed")).toMatch(/nobody/);
  expect((await bundle(from.config, ...of, "--seal", seal)).exitCode).toBe(0);
  expect(await refused(from.config, ...of, "--seal", seal)).toMatch(/is not empty/);
  expect(await refused(from.config, ...of.with(1, sign), "--seal", seal)).toMatch(/no directory/);

  const to = await openMachine(1);
  const take = ["import", path, "--trust", SIGNER, "--seal", seal];
  expect(await refused(to.config, ...take)).toMatch(/no engine here has a name/);
  const shape = { ...shapeOf(20), namespace: OTHER_NAMESPACE };
  const strange = await FakeEngine.start(to.sidecar.socketPath, shape);
  const [own, other] = [engine.namespace, OTHER_NAMESPACE].map((name) =>
    name.toString("hex", 0, 8),
  );
  expect(await refused(to.config, ...take)).toMatch(
    new RegExp(`namespace ${own!} \\(test/model\\), and here test/model has ${other!}`),
  );
  strange.close();
  await FakeEngine.start(to.sidecar.socketPath, { ...shapeOf(20), engine: "same" });
  const nobody = "ab".repeat(32);
  expect(await bundle(to.config, ...take.with(1, freshPath()))).toMatchObject({
    exitCode: 2,
    stderr: expect.stringContaining("there is no such directory") as string,
  });
  expect(await refused(to.config, ...take.with(3, nobody))).toMatch(
    new RegExp(`signed by ${SIGNER}, which is no key of --trust`),
  );
  expect(await refused(to.config, ...take.slice(0, 4))).toMatch(/sealed: name the file/);
  expect(await refused(to.config, ...take.with(3, "abc"))).toMatch(/--trust = "abc": not 64/);
  expect(await refused(to.config, ...take, "--namespace", "")).toMatch(/--namespace is empty/);
  const wrong = keyFile("3c".repeat(32));
  expect(await refused(to.config, ...take.with(5, wrong))).toMatch(/does not open it/);
  expect(to.vaults[0]!.stats().records).toBe(0);
  expect((await bundle(to.config, ...take)).exitCode).toBe(0);
});

test(
  "F88 an import that is killed leaves a beginning, which is restored; the next one goes on from there",
  { tags: ["nightly"] },
  async () => {
    const from = await openMachine(1, { vaultBytes: 96 * MIB });
    // Several layers, of blocks that take a while to travel.
    const [count, page] = [320, 65_536];
    const shape = { ...shapeOf(count), groups: [makeGroup({ layers: 16 })] };
    const { blocks } = await converse(from, "long", count, page, shape);
    const path = freshPath();
    const of = ["--session", "long", "--sign", keyFile(), "--unsealed"];
    const made = await bundle(from.config, "export", path, ...of);
    expect(made.result).toMatchObject({ blocks: count, layers: 2 });

    const vault = await openVault({ maxBytes: 96 * MIB });
    const proxy = closeAfterTest(await startFaultProxy({ target: vault.address }));
    const to = await machineOf([proxy]);
    proxy.set({ direction: "store", bytesPerSecond: 16 * MIB });
    const args = ["bundle", "import", path, "--trust", SIGNER, "--namespace", NAME];
    const program = new Program([...args, "--config", to.config]);
    await until(() => vault.stats().records > count / 2, "half of it to arrive");
    program.signal("SIGKILL");
    await program.ended();
    await until(() => vault.stats().reservedBytes === 0, "what had begun to end");
    const stored = vault.stats().records;
    expect(stored).toBeLessThan(count);
    proxy.set({});
    const direct = await machineOf([vault]);
    expect(await restored(direct, blocks, shape)).toBe(stored);

    const again = await bundle(direct.config, ...args.slice(1));
    expect(again.result).toMatchObject({ stored: count - stored, present: stored, blocks: count });
    const after = await machineOf([vault]);
    expect(await restored(after, blocks, shape)).toBe(count);
  },
);

test("a vault that is too small says how much of it is there", async () => {
  const from = await openMachine(1, { vaultBytes: 96 * MIB });
  const shape = { ...shapeOf(400), groups: [makeGroup({ layers: 16 })] };
  await converse(from, "large", 400, 65_536, shape);
  const path = freshPath();
  const of = ["export", path, "--session", "large", "--sign", keyFile(), "--unsealed"];
  expect((await bundle(from.config, ...of)).exitCode).toBe(0);
  const to = await openMachine(1, { vaultBytes: 16 * MIB });
  const given = ["--trust", SIGNER, "--namespace", NAME];
  const taken = await bundle(to.config, "import", path, ...given);
  expect(taken.exitCode).toBe(1);
  expect(Number(taken.result["blocks"])).toBeLessThan(400);
});
