// Owns the proof that `tierkv vaults ls` says of each vault what it owns, how full it is and how it is.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import type * as Limits from "../../../src/base/limits/general.ts";
import type * as PoolLimits from "../../../src/base/limits/pool.ts";
import { describe as shown } from "../../../src/cli/commands/vaults.ts";
import { Call } from "../../../src/cli/shell/call.ts";
import type { Io } from "../../../src/cli/shell/io.ts";
import { stillNamed } from "../../../src/cli/vaults/pooling.ts";
import { describeWritten, writeVaults } from "../../../src/cli/vaults/vault-lists.ts";
import type { Written } from "../../../src/cli/vaults/vault-lists.ts";
import { loadConfig } from "../../../src/config/load.ts";
import { runInside } from "../../support/command-line.ts";
import { openFakeVault } from "../../support/fake-vault.ts";
import { makeRecords, NAMESPACE } from "../../support/records.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";
import { MIB, openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

// Vaults, sidecar and command share one loop here: on a busy machine it takes longer than they do apart.
vi.mock("../../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  STATUS_TIMEOUT_MS: 40_000,
}));
vi.mock("../../../src/base/limits/pool.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof PoolLimits>()),
  VAULTS_SEEN_MS: 40_000,
}));

function configOf(socket: string): string {
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, `[sidecar]\nsocket = "${socket}"\n`);
  return config;
}

test("three vaults, one of four times the size and one that is down: shares, fill and state", async () => {
  const sizes = [64, 16, 16];
  const vaults = await Promise.all(sizes.map((size) => openVault({ maxBytes: size * MIB })));
  const clients = vaults.map((vault) => openClient(vault));
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null } });
  await vaults[2]!.close();
  await until(async () => {
    await clients[2]!.stats(SOON_MS).catch(() => {});
    return clients[2]!.isDown;
  }, "the one that is down");
  const config = configOf(sidecar.socketPath);
  const { exitCode, stdout } = await runInside(["vaults", "ls", "--json", "--config", config]);
  expect(exitCode).toBe(0);
  const { vaults: rows } = JSON.parse(stdout) as {
    vaults: { address: string; state: string; share: number; seen: { maxBytes: number } | null }[];
  };
  expect(rows.map(({ address }) => address)).toEqual(vaults.map(({ address }) => address));
  expect(rows.map(({ state }) => state)).toEqual(["up", "up", "down"]);
  expect(rows.map(({ seen }) => seen?.maxBytes ?? null)).toEqual([64 * MIB, 16 * MIB, null]);
  expect(rows[0]!.share).toBeCloseTo(4 / 6, 1);
  expect(rows.reduce((sum, { share }) => sum + share, 0)).toBeCloseTo(1, 5);
  const text = (await runInside(["vaults", "ls", "--config", config])).stdout;
  expect(text).toMatch(/^class +address +from +state +owns +gaps +misplaced +full/);
  expect(text).toMatch(/down +1\d\.\d % +0 +0 +- /);
});

test("what vaults hold is asked for anew by each command", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  await client.hello(SOON_MS);
  const sidecar = await openSidecar({ vaults: { kv: client, ssm: null } });
  const argv = ["vaults", "ls", "--json", "--config", configOf(sidecar.socketPath)];
  const held = async (): Promise<number> => {
    const { vaults } = JSON.parse((await runInside(argv)).stdout) as {
      vaults: { seen: { records: number } }[];
    };
    return vaults[0]!.seen.records;
  };
  expect(await held()).toBe(0);
  await client.put(NAMESPACE, makeRecords(3), SOON_MS);
  expect(await held()).toBe(3);
});

test("a vault that drains is shown so, also by a sidecar without engines", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  await client.hello(SOON_MS);
  const sidecar = await openSidecar({ vaults: { kv: client, ssm: null } });
  const argv = ["vaults", "ls", "--config", configOf(sidecar.socketPath)];
  expect((await runInside(argv)).stdout).not.toContain("drains");
  const other = openClient(vault);
  await other.drain(SOON_MS);
  expect((await runInside(argv)).stdout).toContain(" drains ");
});

test("one that has left says so, and without any the exit code is 1", async () => {
  const row = {
    class: "kv",
    address: "a:1",
    source: "dns" as const,
    tier: "vault" as const,
    state: "up",
    trouble: "",
    lookedMs: null,
    lanes: "up",
    isLent: false,
    cut: [],
    share: 0,
    isDraining: false,
    holes: 3,
    moved: 2,
    form: null,
    counts: null,
    seen: null,
  };
  expect(shown([row])[1]).toMatch(/^kv +a:1 +- +up +left +3 +2 +-/);
  expect(shown([{ ...row, isDraining: true }])[1]).toMatch(/^kv +a:1 +dns +up +drains +3 +2 +-/);
  const behind = { address: "s3://bucket/x", state: "up", trouble: "" };
  const [, first, second] = shown([{ ...row, behind }]);
  expect(first).toMatch(/^kv +a:1 /);
  expect(second).toMatch(/^kv +s3:\/\/bucket\/x +dns +up +behind +-/);
  const unused = shown([{ ...row, behind: { ...behind, state: "unknown" } }]);
  expect(unused[3]).toMatch(/^unknown: the sidecar has not needed it since its start/);
  const sidecar = await openSidecar();
  const { exitCode, stdout } = await runInside([
    "vaults",
    "ls",
    "--config",
    configOf(sidecar.socketPath),
  ]);
  expect([exitCode, stdout.trim()]).toEqual([1, "no vault is known"]);
});

test("add and remove write this machine's list, say what moves, and refuse what would leave none", async () => {
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, '# ours\n[cluster]\nkv_cold = "127.0.0.1:1" # the first\n');
  const run = async (
    change: string,
    ...more: string[]
  ): Promise<{ exitCode: number | null; stdout: string; stderr: string }> =>
    await runInside(["vaults", change, ...more, "--config", config]);
  expect((await run("add", "127.0.0.2:1")).stdout).toMatch(/kv_cold = .*127\.0\.0\.2:1/);
  const { stdout } = await run("add", "127.0.0.3:1", "--json");
  const { vaults, moved } = JSON.parse(stdout) as { vaults: string[]; moved: number };
  expect(vaults).toEqual(["127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"]);
  expect([moved > 0.2, moved < 0.45]).toEqual([true, true]);
  expect(readFileSync(config, "utf8")).toBe(
    '# ours\n[cluster]\nkv_cold = ["127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"] # the first\n',
  );
  expect(await run("add", "127.0.0.3:1")).toMatchObject({ exitCode: 2 });
  const wrong = await run("add", "no address");
  expect(wrong).toMatchObject({ exitCode: 2, stdout: "" });
  expect(wrong.stderr).toMatch(/command line: address = "no address": the port is missing/);
  // Its mistake is of the list as it would become.
  const unsafe = await run("add", "valkey://10.0.0.7:6379");
  expect(unsafe.stderr).toMatch(/^tierkv: command line: \[cluster\] kv_cold = .*not encrypted/);
  const removed = await run("remove", "127.0.0.3:1");
  expect(removed.stdout).toMatch(/^unless it was drained, about [\d.]+ % of all blocks change/m);
  expect((await run("remove", "127.0.0.2:1")).exitCode).toBe(0);
  expect(readFileSync(config, "utf8")).toContain('kv_cold = "127.0.0.1:1" # the first');
  expect((await run("remove", "127.0.0.1:1")).stderr).toMatch(/it is the only one/);
  expect((await run("remove", "127.0.0.9:1")).stderr).toMatch(/it is not in \[cluster\] kv_cold: /);
  const far = await run("add", "10.0.0.7:1", "--class", "ssm");
  expect(far.stdout).toMatch(
    /nothing is sent to it before this machine joins it: .*`tierkv invite`/,
  );
  expect((await run("remove", "10.0.0.7:1", "--class", "ssm")).exitCode).toBe(2);
  writeFileSync(config, readFileSync(config, "utf8").replace(/ssm_cold.*\n/, ""));
  const near = await run("add", "127.0.0.7:1", "--class", "ssm");
  expect([near.exitCode, near.stdout.includes("joins it")]).toEqual([0, false]);
  expect(readFileSync(config, "utf8")).toContain('ssm_cold = "127.0.0.7:1"');
  const both = await run("add", "127.0.0.8:1");
  expect(both.stdout).toContain("`tierkv vaults add 127.0.0.8:1 --class ssm`, too");
  expect((await run("add", "127.0.0.7:1")).stdout).not.toContain("--class ssm");
});

test("of two vaults with copies:2 the lost one is removed, and what one vault means is said", async () => {
  const config = join(testDirectory(), "tierkv.toml");
  const toml = '[cluster]\nredundancy = "copies:2"\nkv_cold = ["127.0.0.1:1", "127.0.0.2:1"]\n';
  writeFileSync(config, toml);
  const argv = ["vaults", "remove", "127.0.0.2:1", "--config", config];
  const { exitCode, stdout } = await runInside(argv);
  expect([exitCode, stdout]).toEqual([0, expect.stringContaining("so each record lies once: add")]);
  expect(readFileSync(config, "utf8")).toContain('kv_cold = "127.0.0.1:1"');
});

test("a change that a vault does not confirm in time is said to be possibly made", async () => {
  const { address } = await openFakeVault({ Weigh: () => {} });
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, `[cluster]\nkv_cold = ["${address}"]\n`);
  const told = await runInside(["vaults", "weight", address, "0.1", "--config", config]);
  expect(told.exitCode).toBe(1);
  expect(told.stderr).toMatch(/may have been made.*`tierkv vaults ls`/);
});

test("a vault of both classes is removed from both lists, or from one by its class", async () => {
  const config = join(testDirectory(), "tierkv.toml");
  const both = '[cluster]\nkv_cold = ["a:1", "b:1"]\nssm_cold = ["a:1", "b:1"]\n';
  const remove = async (...more: string[]): Promise<string> => {
    writeFileSync(config, both);
    const { stderr } = await runInside(["vaults", "remove", "b:1", ...more, "--config", config]);
    expect(stderr).toBe("");
    return readFileSync(config, "utf8");
  };
  expect(await remove()).toBe('[cluster]\nkv_cold = "a:1"\nssm_cold = "a:1"\n');
  expect(await remove("--class", "ssm")).toBe(
    '[cluster]\nkv_cold = ["a:1", "b:1"]\nssm_cold = "a:1"\n',
  );
});

test("a list that is learned from a vault that has left the pool is to name another vault", () => {
  const path = configOf("/x.sock");
  writeFileSync(path, '[cluster]\nkv_cold = "pool:10.0.0.2:50051"\n');
  const config = loadConfig(path, {});
  expect(stillNamed(config, "10.0.0.2:50051", "10.0.0.3:50051")).toEqual([
    `[cluster] kv_cold in ${path} names it: write "pool:10.0.0.3:50051" in place of "pool:10.0.0.2:50051"`,
  ]);
  expect(stillNamed(config, "10.0.0.4:50051", "10.0.0.3:50051")).toEqual([]);
});

test("a file that cannot be replaced is left alone with the reason, and is not replaced where it says so already", () => {
  // A name that leaves no room for the fresh file's.
  const config = join(testDirectory(), "t".repeat(250));
  const io = { env: {} } as unknown as Io;
  const toml = '[cluster]\nkv_cold = "a:1"\n';
  writeFileSync(config, toml);
  const read = loadConfig(config, {});
  const change = (list: string[]): Written => writeVaults(new Call({}, io), read, { kv: list });
  expect(change(["a:1"])).toMatchObject({ isDone: true, problem: null });
  const refused = change(["a:1", "b:1"]);
  expect(refused.isDone).toBe(false);
  expect(describeWritten(refused, { kv: ["a:1", "b:1"] })).toMatch(
    /could not be written \(ENAMETOOLONG.*write below its \[cluster\]: kv_cold = \["a:1", "b:1"\]$/,
  );
  expect(readFileSync(config, "utf8")).toBe(toml);
});
