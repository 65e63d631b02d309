// Owns the proof that `tierkv vaults ls` says of each vault what it owns, how full it is and how it is.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { describe as shown } from "../../../src/cli/commands/vaults.ts";
import { runInside } from "../../support/command-line.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";
import { MIB, openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

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
    return clients[2]!.isOpen;
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
  expect(text).toMatch(/^class +address +state +owns +full/);
  expect(text).toMatch(/down +1\d\.\d % +- /);
});

test("one that has left says so, and without any the exit code is 1", async () => {
  const row = {
    class: "kv",
    address: "a:1",
    tier: "vault" as const,
    state: "up",
    lanes: "up",
    share: 0,
    seen: null,
  };
  expect(shown([row])[1]).toMatch(/^kv +a:1 +up +left +-/);
  const sidecar = await openSidecar();
  const { exitCode, stdout } = await runInside([
    "vaults",
    "ls",
    "--config",
    configOf(sidecar.socketPath),
  ]);
  expect([exitCode, stdout.trim()]).toEqual([1, "no vault is known"]);
});
