// Owns the proof that processes which die, pause or have their clock moved under load cost hits and nothing else.
import { expect, test } from "vitest";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import { until } from "../support/vaults.ts";
import { KillableVault } from "./lib/killable.ts";
import { BLOCK_GROUP, BLOCK_PAGE_BYTES } from "./lib/load.ts";
import { openStand, underLoad } from "./lib/stand.ts";
import type { Stand } from "./lib/stand.ts";

const TEST_MS_MAX = 120_000;

async function openKillable(): Promise<{ stand: Stand; vault: KillableVault }> {
  const vault = await KillableVault.start();
  return { vault, stand: await openStand({ vault }) };
}

const vaultState = ({ sidecar }: Stand): string => sidecar.status().vaults.kv!.state;

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
    // Nothing that it held before is believed to be there.
    acted: () => missed() > before,
    heal: () => {},
  });
});

test("F16 a vault that pauses for longer than any lease", { timeout: TEST_MS_MAX }, async () => {
  const { stand, vault } = await openKillable();
  await underLoad(stand, {
    inject: () => vault.pause(),
    // Every plan and every call that it was part of has been given up, and lies in its sockets still.
    acted: () => vaultState(stand) === "down",
    heal: () => vault.goOn(),
  });
});

/** Moves the wall clock of this process, in which vault, sidecar and gRPC run, to and fro. */
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

test.each([{ lanePort: null }, {}])("F15 a wall clock that jumps (vault %j)", async (vault) => {
  const stand = await openStand({ vault });
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
    // At once, or at the answer, or when blocks lie in its slots.
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
