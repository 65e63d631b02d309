// Owns the proof that processes that die, pause or have their clock moved under load cost hits only.
// @module-tag nightly
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, openClient, SOON_MS, until } from "../support/vaults.ts";
import { KillableSidecar, KillableVault } from "./lib/killable.ts";
import type { VaultShape } from "./lib/killable.ts";
import { BLOCK_GROUP, BLOCK_PAGE_BYTES, COARSE, Load } from "./lib/load.ts";
import { testSeed } from "./lib/random.ts";
import { expectEven, FLOOR, openStand, underLoad } from "./lib/stand.ts";
import type { Stand } from "./lib/stand.ts";

const TEST_MS_MAX = 300_000;
/** Above the 5 s limit of a plan of these sidecars, and all shorter limits. */
const LONG_PAUSE_MS = 6000;
/** Above the stall limit of a fetch of theirs. */
const SHORT_PAUSE_MS = 1500;
/** A small disk needs a private mount. */
const canMount = spawnSync("unshare", ["--mount", "true"]).status === 0;

async function openKillable(
  shape: VaultShape = {},
): Promise<{ stand: Stand; vault: KillableVault }> {
  const vault = await KillableVault.start(shape);
  return { vault, stand: await openStand({ vault }) };
}

const vaultState = ({ sidecar }: Stand): string => sidecar.status().vaults.kv[0]!.state;

test("F1 a vault that is killed while it serves", { timeout: TEST_MS_MAX }, async () => {
  const { stand, vault } = await openKillable();
  await underLoad(stand, {
    inject: () => vault.kill(),
    acted: () => vaultState(stand) === "down",
    heal: () => vault.startAgain(),
  });
  expect(stand.load.ledger.reasons["vault_down"]).toBeGreaterThan(0);
});

test("F2 a vault that comes back empty, at once", { timeout: TEST_MS_MAX }, async () => {
  const { stand, vault } = await openKillable();
  const missed = (): number => stand.load.ledger.reasons["end_of_hit"] ?? 0;
  let before = Infinity;
  await underLoad(stand, {
    inject: async () => {
      await vault.kill();
      await vault.startAgain();
      before = missed();
    },
    // Missed, because no earlier record counts as held.
    acted: () => missed() > before,
    heal: () => {},
  });
});

test("F3 a vault with a disk that is killed", { timeout: TEST_MS_MAX }, async () => {
  const { stand, vault } = await openKillable({ isDurable: true });
  const client = openClient(vault, "kv", { lanes: 0 });
  const found = async (): Promise<number> => (await client.stats(SOON_MS)).disk?.records ?? 0;
  let before = Infinity;
  await underLoad(stand, {
    inject: async () => {
      before = await found();
      await vault.kill();
      await vault.startAgain();
    },
    acted: async () => (await found()) >= before && before > FLOOR,
    heal: () => {},
  });
});

test.skipIf(!canMount)("F12 a vault whose disk is full", { timeout: TEST_MS_MAX }, async () => {
  const folder = testDirectory();
  // Sized for the vault's own limit, but mostly filled with other data.
  const mounted = `mount -t tmpfs -o size=70m tmpfs ${folder} && head -c 64m /dev/zero >${folder}/other && exec "$@"`;
  const shape = { isDurable: true, dataDir: join(folder, "data"), diskBytes: "64MiB" };
  const vault = await KillableVault.start({
    ...shape,
    under: ["unshare", "--mount", "sh", "-c", mounted, "sh"],
  });
  const stand = await openStand({ vault, grain: COARSE, chains: 12, freshEvery: 3 });
  const client = openClient(vault, "kv", { lanes: 0 });
  await underLoad(stand, {
    inject: () => {},
    acted: async () => {
      const { disk, counters } = await client.stats(SOON_MS);
      return disk?.failing === true && counters["disk_alarms"]! > 0;
    },
    heal: () => {},
  });
});

test("F16 a vault that pauses for longer than any lease", { timeout: TEST_MS_MAX }, async () => {
  const { stand, vault } = await openKillable();
  await underLoad(stand, {
    inject: () => vault.pause(),
    // Every plan and call during the pause has been given up, and still lies in its sockets.
    acted: () => vaultState(stand) === "down",
    heal: () => vault.goOn(),
  });
});

/** Opens a sidecar in its own process, and the load on it. */
async function openOwn(): Promise<{ vault: KillableVault; sidecar: KillableSidecar; load: Load }> {
  const vault = await KillableVault.start();
  const sidecar = await KillableSidecar.start({ vault });
  const shape = { seed: testSeed(), chains: 48, freshEvery: 4, grain: COARSE };
  const load = await Load.open(sidecar.socketPath, shape);
  closeAfterTest({ close: () => load.stop() });
  load.start();
  await load.wholeMore(FLOOR, "before the fault");
  return { vault, sidecar, load };
}

async function goesOn(scene: Awaited<ReturnType<typeof openOwn>>): Promise<void> {
  const { vault, sidecar, load } = scene;
  await load.wholeMore(FLOOR, "after the fault");
  await load.stop();
  expect(load.ledger.wrong).toBe(0);
  await expectEven({ status: () => sidecar.status(), load, vault });
}

async function pausesFor(ms: number): Promise<void> {
  const scene = await openOwn();
  scene.sidecar.pause();
  const before = scene.load.ledger.plans;
  await new Promise((resolve) => {
    setTimeout(resolve, ms);
  });
  expect(scene.load.ledger.plans - before, "it paused (else: void)").toBeLessThan(3);
  scene.sidecar.goOn();
  await goesOn(scene);
}

test("F16 a sidecar that pauses for longer than any wait", { timeout: TEST_MS_MAX }, async () => {
  await pausesFor(LONG_PAUSE_MS);
});

test("F19 a sidecar that hangs for a moment", { timeout: TEST_MS_MAX }, async () => {
  await pausesFor(SHORT_PAUSE_MS);
});

test("F21 a sidecar that is killed: its arenas are swept", { timeout: TEST_MS_MAX }, async () => {
  const scene = await openOwn();
  const { sidecar, load } = scene;
  const [left] = readdirSync(sidecar.arenas);
  expect(left).toBeDefined();
  await sidecar.kill();
  expect(readdirSync(sidecar.arenas), "it was killed (else: void)").toEqual([left]);
  await sidecar.startAgain();
  expect(readdirSync(sidecar.arenas)).toEqual([]);
  await load.again(sidecar.socketPath);
  await goesOn(scene);
});

test("F45 a sidecar that is told to stop under load", { timeout: TEST_MS_MAX }, async () => {
  const scene = await openOwn();
  const { sidecar, load } = scene;
  expect(await sidecar.stop()).toBe(0);
  expect(readdirSync(sidecar.arenas)).toEqual([]);
  await sidecar.startAgain();
  await load.again(sidecar.socketPath);
  await goesOn(scene);
});

/** Moves the wall clock of this process, in which vault, sidecar and gRPC run, back and forth. */
class WallClock {
  reads = 0;
  readonly #real = Date;
  readonly #jumpsMs = [0, 3_600_000, -31_536_000_000, 1, 31_536_000_000, -3_600_000];
  #jump = 0;
  #timer: NodeJS.Timeout | undefined;

  start(): void {
    const now = (): number => {
      this.reads += 1;
      return this.#real.now() + this.#jumpsMs[this.#jump % this.#jumpsMs.length]!;
    };
    const Real = this.#real;
    globalThis.Date = class extends Real {
      constructor(...given: [] | [number]) {
        super(given.length === 0 ? now() : given[0]);
      }

      static override now(): number {
        return now();
      }

      static override [Symbol.hasInstance](value: unknown): boolean {
        return Object.prototype.toString.call(value) === "[object Date]";
      }
    } as DateConstructor;
    this.#timer = setInterval(() => {
      this.#jump += 1;
    }, 10);
  }

  get jumps(): number {
    return this.#jump;
  }

  stop(): void {
    clearInterval(this.#timer);
    globalThis.Date = this.#real;
  }
}

test("F15 a wall clock that jumps", async () => {
  const stand = await openStand();
  const clock = new WallClock();
  try {
    await underLoad(stand, {
      inject: () => clock.start(),
      acted: () => clock.jumps > 20 && clock.reads > 20,
      heal: () => clock.stop(),
    });
  } finally {
    clock.stop();
  }
});

test("F20 engines that die in the middle of saves and restores", async () => {
  const stand = await openStand();
  const { sidecar } = stand;
  const chains = Array.from({ length: 12 }, (_, number) =>
    makeBlocks(`dying ${number}`, 16, BLOCK_PAGE_BYTES),
  );
  const open = (name: string): Promise<FakeEngine> =>
    FakeEngine.start(sidecar.socketPath, { engine: name, groups: [BLOCK_GROUP] });
  const die = async (number: number): Promise<void> => {
    const engine = await open(`dying ${number}`);
    engine.save(chains[number]!);
    const plan = engine.prefetch(hashesOf(chains[Math.floor(number / 2)]!));
    // Dies at once, at the answer, or when blocks are in its slots.
    if (number % 3 > 0) await until(() => engine.view(plan).held !== null, "an answer");
    if (number % 3 > 1) await engine.done(plan);
    engine.close();
  };
  await underLoad(stand, {
    inject: async () => {
      for (const number of chains.keys()) await die(number);
    },
    acted: () => sidecar.counters.get("engines_gone") >= chains.length,
    during: async () => {
      const reader = await open("reader");
      for (const blocks of chains) {
        const view = await reader.done(reader.prefetch(hashesOf(blocks)));
        for (const [index] of (view.placed.get(0) ?? []).entries()) {
          expect(reader.holds(view, index, blocks[index]!)).toBe(true);
        }
        reader.release(view.plan);
      }
      reader.close();
      await until(() => sidecar.status().engines.length === 1, "the others to be gone");
    },
    heal: () => {},
  });
});
