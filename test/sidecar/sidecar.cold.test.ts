// Owns the proof that sidecars share blocks through a store that others run: one saves, another restores the same bytes.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { SidecarLink } from "../../src/control/sidecar-link.ts";
import type { SidecarStatus } from "../../src/sidecar/status.ts";
import { Program, runInside } from "../support/command-line.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import { testDirectory } from "../support/sidecars.ts";
import { HAS_S3, HAS_VALKEY, startBucket, startCluster, ValkeyServer } from "../support/stores.ts";
import { closeAfterTest, SOON_MS, until } from "../support/vaults.ts";

const PAGE = 8192;
const CHAIN = 40;

interface Store {
  address: string;
  env: Record<string, string>;
  /** Address of a bucket behind it. */
  bucket?: string;
  /** Loses a part of what was saved. */
  lose?(): Promise<void>;
}

interface Side {
  config: string;
  socket: string;
}

async function startSide({ address, env, bucket }: Store): Promise<Side> {
  const folder = testDirectory();
  const [config = "", socket = "", arenas = ""] = ["t.toml", "s.sock", "arenas"].map((name) =>
    join(folder, name),
  );
  mkdirSync(arenas, { mode: 0o700 });
  const places = bucket === undefined ? address : [address, bucket];
  const text =
    `[cluster]\nrole = "inference"\nkv_cold = ${JSON.stringify(places)}\n[turbo_quant]\nenabled = false\n` +
    `[restore]\nwhen = "always"\nwait_ms = 20000\nstall_ms = 20000\n` +
    `[sidecar]\nsocket = "${socket}"\narena_dir = "${arenas}"\narena_bytes = "64MiB"\n`;
  writeFileSync(config, text, { mode: 0o600 });
  const program = new Program(["sidecar", "--json", "--config", config], { env });
  closeAfterTest({ close: () => program.signal("SIGKILL") });
  await program.firstResult();
  return { config, socket };
}

async function statusOf({ socket }: Side): Promise<SidecarStatus> {
  const link = new SidecarLink(socket);
  try {
    await link.hello(SOON_MS);
    return await link.status(SOON_MS);
  } finally {
    link.close();
  }
}

const STORES: [what: string, has: boolean, start: () => Promise<Store>][] = [
  ["Valkey", HAS_VALKEY, async () => ({ address: (await ValkeyServer.start()).address, env: {} })],
  [
    "a cluster of Valkey",
    HAS_VALKEY,
    async () => ({ address: (await startCluster())[0]!.address, env: {} }),
  ],
  ["S3", HAS_S3, startBucket],
  [
    "Valkey that loses half, and a bucket behind it",
    HAS_VALKEY && HAS_S3,
    async () => {
      const [server, bucket] = [await ValkeyServer.start(), await startBucket()];
      const lose = async (): Promise<void> => {
        const keys = await server.keys("tierkv:1:*");
        for (const key of keys.slice(0, CHAIN / 2)) await server.ask("DEL", key);
      };
      return { address: server.address, env: bucket.env, bucket: bucket.address, lose };
    },
  ],
];

test.each(STORES)("one sidecar saves to %s, another restores the same bytes", async (...of) => {
  const [, has, start] = of;
  if (!has) return;
  const store = await start();
  const [first, second] = [await startSide(store), await startSide(store)];
  const saver = await FakeEngine.start(first.socket, { engine: "A" });
  const blocks = makeBlocks("cold", CHAIN, PAGE);
  saver.save(blocks);
  const isSaved = async (): Promise<boolean> =>
    (await statusOf(first)).counters["blocks_saved"] === CHAIN;
  await until(isSaved, "the saves");
  await store.lose?.();

  const reader = await FakeEngine.start(second.socket, { engine: "B" });
  const view = await reader.done(reader.prefetch(hashesOf(blocks)));
  expect([view.reason, view.placed.get(0)?.length]).toEqual(["complete", CHAIN]);
  for (const [at, block] of blocks.entries()) expect(reader.holds(view, at, block)).toBe(true);
  reader.release(view.plan);

  const { vaults, counters } = await statusOf(second);
  expect(vaults.kv).toMatchObject([{ address: store.address, state: "up" }]);
  expect(counters).toMatchObject({ blocks_restored_vault: CHAIN });
  const shown = await runInside(["status", "--config", second.config]);
  expect(shown.stdout).toContain(store.address);
});

test.skipIf(!HAS_VALKEY)(
  "two sidecars that save the same blocks, one after the other or at once, send each block once",
  async () => {
    const server = await ValkeyServer.start();
    const store = { address: server.address, env: {} };
    const sides = [await startSide(store), await startSide(store)];
    const engines: FakeEngine[] = [];
    for (const [at, { socket }] of sides.entries())
      engines.push(await FakeEngine.start(socket, { engine: `engine ${at}` }));
    const known = async (side: Side): Promise<number> => {
      const { blocks_saved: saved = 0, saves_present: present = 0 } = (await statusOf(side))
        .counters;
      return saved + present;
    };
    const sent = async (): Promise<number> => {
      const text = await server.say("INFO", "commandstats");
      return Number(/cmdstat_set:calls=(\d+)/.exec(text)?.[1] ?? 0);
    };
    const blocks = makeBlocks("twice", CHAIN, PAGE);
    for (const [at, engine] of engines.entries()) {
      engine.save(blocks);
      await until(async () => (await known(sides[at]!)) === CHAIN, "the saves of one");
    }
    expect([await sent(), (await server.keys("tierkv:1:*")).length]).toEqual([CHAIN, CHAIN]);
    const others = makeBlocks("at once", CHAIN, PAGE);
    for (const engine of engines) engine.save(others);
    for (const side of sides)
      await until(async () => (await known(side)) === 2 * CHAIN, "the saves of both");
    // Where both asked before either had stored, NX keeps the first.
    expect(await server.keys("tierkv:1:*")).toHaveLength(2 * CHAIN);
    const saved = await Promise.all(
      sides.map(async (side) => (await statusOf(side)).counters["blocks_saved"] ?? 0),
    );
    expect(saved.reduce((sum, count) => sum + count, 0)).toBe(2 * CHAIN);
  },
);

const NOTHING_OF_NOPE = /: nothing dropped\n.*no vault knows a model "nope"/s;

test.skipIf(!HAS_VALKEY)(
  "a flush of a Valkey drops what it names in Valkey and in every sidecar",
  async () => {
    const store = { address: (await ValkeyServer.start()).address, env: {} };
    const [first, second] = [await startSide(store), await startSide(store)];
    const saver = await FakeEngine.start(first.socket, { engine: "A" });
    const blocks = makeBlocks("flushed", CHAIN, PAGE);
    saver.save(blocks);
    const counted = async (side: Side, name: string): Promise<number> =>
      (await statusOf(side)).counters[name] ?? 0;
    await until(async () => (await counted(first, "blocks_saved")) === CHAIN, "the saves");
    const reader = await FakeEngine.start(second.socket, { engine: "B" });
    const before = await reader.done(reader.prefetch(hashesOf(blocks)));
    expect(before.placed.get(0)?.length).toBe(CHAIN);
    reader.release(before.plan);
    const other = await runInside(["flush", "--class", "ssm", "--yes", "--config", first.config]);
    expect(other.stdout).toMatch(/no client reads the flushed records/);
    expect(await counted(second, "flushed_blocks")).toBe(0);
    const nope = await runInside(["flush", "--model", "nope", "--yes", "--config", first.config]);
    expect([nope.exitCode, nope.stdout]).toEqual([1, expect.stringMatching(NOTHING_OF_NOPE)]);
    expect(await counted(second, "flushed_blocks")).toBe(0);
    const { exitCode } = await runInside([
      "flush",
      "--class",
      "kv",
      "--yes",
      "--config",
      first.config,
    ]);
    expect(exitCode).toBe(0);
    // The first one keeps no copies of what it saved.
    await until(async () => (await counted(second, "flushed_blocks")) > 0, "the copies to go");
    const after = await reader.done(reader.prefetch(hashesOf(blocks)));
    expect(after.placed.get(0)?.length ?? 0).toBe(0);
  },
);
