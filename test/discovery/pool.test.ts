// Owns the proof that one address of a pool is enough: the others are learned, whoever joined one has joined all, and nobody else adds a vault.
import { existsSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";
import { askOnce } from "../../src/client/vault/ask.ts";
import { keptAt, knownTargets } from "../../src/cluster/sources.ts";
import { checkConfig } from "../../src/config/check.ts";
import type { GossipRequest, SignedEntry } from "../../src/wire/messages.ts";
import { vaultService } from "../../src/wire/service.ts";
import { runInside } from "../support/command-line.ts";
import { followVaults, poolKey, startPooled } from "../support/pooled.ts";
import type { Following, PooledVault } from "../support/pooled.ts";
import { testDirectory } from "../support/sidecars.ts";
import { openClient, SOON_MS, until } from "../support/vaults.ts";

const at = (address: string): Parameters<typeof askOnce>[0] => ({
  name: "the",
  address,
  security: null,
  timeoutMs: SOON_MS,
});

/** What a vault says of its pool, to who reads. */
async function listOf(address: string): Promise<SignedEntry[]> {
  return (await askOnce(at(address), vaultService.Pool, { mark: 0, epoch: 0 })).vaults;
}

async function membersOf(address: string): Promise<string[]> {
  const entries = await listOf(address);
  return entries
    .map(({ statement }) => JSON.parse(statement.toString()) as { address: string; gone: boolean })
    .filter(({ gone }) => !gone)
    .map((entry) => entry.address)
    .toSorted();
}

async function refusedBy(address: string): Promise<number> {
  return (await openClient({ address }).stats(SOON_MS)).counters["listings_refused"] ?? 0;
}

const addresses = (vaults: readonly PooledVault[]): string[] =>
  vaults.map(({ address }) => address).toSorted();

/** Two vaults of one pool, and a machine's configuration that has joined neither. */
async function openPair(): Promise<
  Record<"key" | "folder" | "config" | "credentials", string> &
    Record<"seed" | "other", PooledVault>
> {
  const key = poolKey();
  const seed = await startPooled({ key, isClosed: true });
  const other = await startPooled({ key, isClosed: true, peers: [seed.address] });
  const folder = testDirectory();
  const config = join(folder, "tierkv.toml");
  const credentials = `[cluster]\ncredentials = "${join(folder, "joined")}"\n`;
  writeFileSync(config, credentials);
  return { key, seed, other, folder, config, credentials };
}

async function untilSeen(
  sidecars: readonly Following[],
  isSo: (rows: Awaited<ReturnType<Following["seen"]>>) => boolean,
  what: string,
): Promise<void> {
  for (const sidecar of sidecars) await until(async () => isSo(await sidecar.seen()), what);
}

test(
  "F83 who joined one vault of a pool uses all, goes on without that one, and both sidecars place alike",
  { tags: ["nightly"] },
  async () => {
    const key = poolKey();
    const seed = await startPooled({ key, isClosed: true });
    const peers = [seed.address];
    const others = [
      await startPooled({ key, isClosed: true, peers }),
      await startPooled({ key, isClosed: true, peers }),
    ];
    const folder = testDirectory();
    const config = join(folder, "tierkv.toml");
    const credentials = `[cluster]\ncredentials = "${join(folder, "joined")}"\n`;
    writeFileSync(config, credentials);
    const joined = await runInside(["join", seed.joinLine(), "--config", config]);
    expect(joined.stdout).toContain(`kv_cold = "pool:${seed.address}"`);
    const follows = `${credentials}kv_cold = "pool:${seed.address}"`;
    const sidecars = [await followVaults(follows, folder), await followVaults(follows)];
    const isMeshed = (vaults: readonly PooledVault[]) => (rows: Map<string, object>) =>
      addresses(vaults).every((address) => {
        const row = rows.get(address) as { source?: string; state?: string; share?: number };
        return row?.source === "pool" && row.state === "up" && row.share! > 0;
      });
    await untilSeen(sidecars, isMeshed([seed, ...others]), "all three, from one address");

    // The one that was known dies. Another comes, and is learned from those that were learned.
    process.kill(seed.pid, "SIGKILL");
    const late = await startPooled({ key, isClosed: true, peers: [others[0]!.address] });
    await untilSeen(sidecars, isMeshed([...others, late]), "the one that came later");

    // Taken out while it is dead, it does not come back with the list that it kept.
    const removed = await runInside(["vaults", "remove", seed.address, "--config", late.config]);
    expect(removed.stdout).toContain(`${seed.address} has left the pool`);
    const isOut = (rows: Map<string, { share: number }>): boolean =>
      rows.get(seed.address)?.share === 0;
    await untilSeen(sidecars, isOut, "the one that was taken out");
    const back = await startPooled({ key, isClosed: true, again: seed });
    await until(() => back.said().includes("taken out of its pool"), "it to hear so");
    await untilSeen(sidecars, isMeshed([...others, late]), "the others, still");
    const [one, two] = await Promise.all(sidecars.map((sidecar) => sidecar.seen()));
    const shares = (rows: typeof one): object =>
      Object.fromEntries([...rows!].map(([address, { share }]) => [address, share]));
    expect(isOut(one!)).toBe(true);
    expect(shares(one)).toEqual(shares(two));
  },
);

test(
  "F92 a sidecar that starts while the one vault that it was told of is down begins with the vaults of its last run",
  { tags: ["nightly"] },
  async () => {
    const { key, seed, other, folder, config, credentials } = await openPair();
    await runInside(["join", seed.joinLine(), "--config", config]);
    const follows = `${credentials}kv_cold = "pool:${seed.address}"`;
    const isUp =
      ({ address }: PooledVault) =>
      (rows: Map<string, { state: string }>) =>
        rows.get(address)?.state === "up";
    const first = await followVaults(follows, folder);
    await untilSeen([first], isUp(other), "the other vault");
    first.kill();
    process.kill(seed.pid, "SIGKILL");

    const second = await followVaults(follows, folder);
    await untilSeen([second], isUp(other), "the other vault, without the first");
    // What is new is heard from the vaults of before.
    const late = await startPooled({ key, isClosed: true, peers: [other.address] });
    await untilSeen([second], isUp(late), "the one that came later");
    const status = (await runInside(["status", "--config", config])).stdout;
    expect(status).toContain(late.address);
    const [file = ""] = readdirSync(join(folder, "state")).filter((name) =>
      name.startsWith("vaults-"),
    );
    expect(statSync(join(folder, "state", file)).mode & 0o777).toBe(0o600);
  },
);

test("a vault with a new certificate is used again by a running sidecar: after another join, or by its pool's list", async () => {
  const { key, seed, other, folder, config, credentials: cluster } = await openPair();
  const joinAt = async (vault: PooledVault): Promise<number | null> =>
    (await runInside(["join", vault.joinLine(), "--config", config])).exitCode;
  expect(await joinAt(seed)).toBe(0);
  const sidecar = await followVaults(`${cluster}kv_cold = "pool:${seed.address}"`, folder);
  // Each look asks the vaults; how often a vault came up stands in the log, however short it was down.
  const risesOf = async ({ address }: PooledVault): Promise<number> => {
    await sidecar.seen();
    const lines = sidecar.said().split("\n");
    return lines.filter((line) => line.includes("vault is up") && line.includes(address)).length;
  };
  const rises = async (vault: PooledVault, count: number): Promise<boolean> =>
    (await risesOf(vault)) >= count;
  await until(() => rises(seed, 1), "the seed to be used");
  await until(() => rises(other, 1), "the other vault to be used");

  const lose = async (vault: PooledVault): Promise<PooledVault> => {
    process.kill(vault.pid, "SIGKILL");
    const state = join(dirname(vault.config), "state");
    rmSync(state, { recursive: true });
    const again = await startPooled({ key, isClosed: true, again: vault });
    await until(() => existsSync(join(state, "invitation")), "its join line");
    return again;
  };
  const before = await risesOf(other);
  await lose(other);
  await until(() => rises(other, before + 1), "the list to bring its new certificate");

  const known = await risesOf(seed);
  const again = await lose(seed);
  expect(await joinAt(again)).toBe(0);
  await until(() => rises(seed, known + 1), "the new join to be used");
});

test("F83 a machine's credential that one vault revokes opens none of the pool", async () => {
  const key = poolKey();
  const first = await startPooled({ key, isClosed: true });
  const second = await startPooled({ key, isClosed: true, peers: [first.address] });
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, `[cluster]\ncredentials = "${join(testDirectory(), "joined")}"\n`);
  await runInside(["join", first.joinLine(), "--config", config]);
  const peersOf = async ({ config: of }: PooledVault): Promise<string> =>
    (await runInside(["peers", "--json", "--config", of])).stdout;
  const nameIn = async (vault: PooledVault): Promise<string | undefined> =>
    /"name":"([^"]+)"/.exec(await peersOf(vault))?.[1];
  await until(async () => (await nameIn(second)) !== undefined, "the machine at the other vault");
  const name = await nameIn(second);
  const { exitCode } = await runInside(["revoke", name!, "--config", second.config]);
  expect(exitCode).toBe(0);
  await until(async () => (await nameIn(first)) === undefined, "the first to hear of it");
});

test(
  "F83 what the pool's key did not sign is refused and counted, and an old list brings nobody back",
  { tags: ["nightly"] },
  async () => {
    const key = poolKey();
    const vaults = [await startPooled({ key })];
    const peers = addresses(vaults);
    for (let more = 0; more < 2; more += 1) vaults.push(await startPooled({ key, peers }));
    const [a, b, c] = vaults as [PooledVault, PooledVault, PooledVault];
    for (const { address } of vaults)
      await until(
        async () => (await membersOf(address)).length === 3,
        `the mesh as ${address} sees it`,
      );
    const old = await listOf(a.address);
    const tell = async (entries: SignedEntry[]): Promise<void> => {
      const request: GossipRequest = { digest: Buffer.alloc(0), entries };
      await askOnce(at(a.address), vaultService.Gossip, request);
    };

    // A stranger's vault, signed by a key of its own; then a signed entry with another address.
    const foreign = await startPooled({ key: poolKey() });
    await tell(await listOf(foreign.address));
    const [{ statement, signature }] = old as [SignedEntry];
    const forged = statement.toString().replace(/127\.0\.0\.1:\d+/, foreign.address);
    await tell([{ statement: Buffer.from(forged), signature }]);
    expect(await refusedBy(a.address)).toBe(2);
    expect(await membersOf(a.address)).toEqual(addresses(vaults));

    // One that hears nothing meanwhile, as behind a cut network.
    process.kill(c.pid, "SIGSTOP");
    expect((await runInside(["vaults", "remove", b.address, "--config", a.config])).exitCode).toBe(
      0,
    );
    expect(await membersOf(a.address)).toEqual(addresses([a, c]));
    await tell(old);
    expect(await membersOf(a.address)).toEqual(addresses([a, c]));
    process.kill(c.pid, "SIGCONT");
    await until(async () => (await membersOf(c.address)).length === 2, "it to hear what it missed");
    expect(await membersOf(c.address)).toEqual(addresses([a, c]));
    expect((await runInside(["vaults", "add", b.address, "--config", a.config])).exitCode).toBe(0);
    await until(async () => (await membersOf(c.address)).length === 3, "it to be let in again");
    expect(await refusedBy(a.address)).toBe(2);
  },
);

test("F83 a sidecar that is told another pool's list refuses and counts it", async () => {
  const vault = await startPooled({ key: poolKey() });
  const foreign = await startPooled({ key: poolKey() });
  const seeds = `["pool:${vault.address}", "pool:${foreign.address}"]`;
  const sidecar = await followVaults(`[cluster]\nkv_cold = ${seeds}`);
  await until(async () => (await sidecar.counter("listings_refused")) > 0, "the refusal");
  // Which of the two it asks first is its pool.
  expect((await sidecar.seen()).size).toBe(1);
});

test("without the vault that this machine joined, a command asks those of the last list", async () => {
  const key = poolKey();
  const seed = await startPooled({ key });
  const other = await startPooled({ key, peers: [seed.address] });
  await until(async () => (await membersOf(other.address)).length === 2, "the pool");
  const stateDir = testDirectory();
  const dead = "127.0.0.1:1";
  const text = `pool:${dead}`;
  const toml = `[cluster]\nkv_cold = "${text}"\n[vault]\nstate_dir = "${stateDir}"\n`;
  const config = checkConfig(toml, null, {}).config!;
  const kept = [{ address: other.address, class: null, certificate: null }];
  writeFileSync(keptAt(config, text), JSON.stringify(kept), { mode: 0o600 });
  // The kept list lacks the vault that came later.
  const { targets, failures, outdated } = await knownTargets(config);
  expect(targets.map(({ address }) => address).toSorted()).toEqual(addresses([seed, other]));
  expect([failures, outdated]).toEqual([[], []]);
});

test(
  "a machine that joins anew while a vault is out of the pool reaches that vault once it is back",
  { tags: ["nightly"] },
  async () => {
    const { seed, other, config } = await openPair();
    const joinAt = async (vault: PooledVault): Promise<string> => {
      const { stdout } = await runInside(["invite", "--config", vault.config]);
      const [code = ""] = /tkv1\.\S+/.exec(stdout) ?? [];
      return (await runInside(["join", code, "--config", config])).stdout;
    };
    const told = async (): Promise<string> =>
      (await runInside(["status", "--config", config])).stdout;
    await joinAt(seed);
    await until(async () => (await told()).includes(other.address), "the pool");
    await joinAt(other);
    const change = async (what: string): Promise<string> =>
      (await runInside(["vaults", what, other.address, "--config", seed.config])).stdout;
    expect(await change("remove")).toContain("has left the pool");
    expect(await joinAt(seed)).toContain(`kv_cold = "pool:${seed.address}"`);
    expect(await change("add")).toContain("belongs to the pool");
    await until(async () => {
      return new RegExp(`kv_cold +${other.address} +up `).test(await told());
    }, "the vault to let it in");
  },
);
