// Owns the proof that kill -9 of a sidecar costs only the hits of the moment: twenty times, under load, against a ledger.
// @module-tag alone
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { SidecarLink } from "../../src/control/sidecar-link.ts";
import type { SidecarStatus } from "../../src/sidecar/status.ts";
import { Program } from "../support/command-line.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import type { Block } from "../support/shim-client.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";
import type { TestVault } from "../support/vaults.ts";

const KILLS = 20;
const PAGE = 8192;
const CHAIN = 8;
/** Time-out for a busy machine. */
const TEST_MS_MAX = 180_000;

const CHAINS = new Map<number, Block[]>();

/** Makes a chain; the same number always gives the same blocks. */
function chain(number: number): Block[] {
  const known = CHAINS.get(number) ?? makeBlocks(`chain ${number}`, CHAIN, PAGE);
  CHAINS.set(number, known);
  return known;
}

/** Blocks that engines saved and got, kept apart from the sidecar. */
class Ledger {
  saved = 0;
  placed = 0;
  wrong = 0;
  turns = 0;

  /** Saves new chains and asks for old ones until the sidecar is gone. */
  async load(engine: FakeEngine): Promise<void> {
    const [worker] = engine.workers;
    for (this.turns = 0; !engine.scheduler.isClosed; this.turns += 1) {
      if (worker!.credits.length >= CHAIN) engine.save(chain(this.saved++));
      await this.read(engine, (this.turns * 7) % this.saved);
    }
  }

  /** Checks that every placed block equals the saved one. */
  async read(engine: FakeEngine, number: number): Promise<void> {
    const blocks = chain(number);
    const plan = engine.prefetch(hashesOf(blocks));
    const isGone = (): boolean => engine.scheduler.isClosed;
    await until(() => isGone() || engine.view(plan).reason !== null, `plan ${plan}`);
    const view = engine.view(plan);
    for (const [at] of (view.placed.get(0) ?? []).entries()) {
      this.placed += 1;
      if (!engine.holds(view, at, blocks[at]!)) this.wrong += 1;
    }
    if (!isGone()) engine.release(plan);
  }
}

interface Place {
  config: string;
  socket: string;
  arenas: string;
}

function writeConfig(vault: TestVault): Place {
  const folder = testDirectory();
  const [config, socket, arenas] = ["t.toml", "s.sock", "arenas"].map((name) => join(folder, name));
  mkdirSync(arenas!, { mode: 0o700 });
  const text =
    `[cluster]\nrole = "inference"\nkv_cold = "${vault.address}"\n[turbo_quant]\nenabled = false\n` +
    `[sidecar]\nsocket = "${socket}"\narena_dir = "${arenas}"\narena_bytes = "64MiB"\n`;
  writeFileSync(config!, text);
  return { config: config!, socket: socket!, arenas: arenas! };
}

async function startSidecar({ config }: Place): Promise<Program> {
  const program = new Program(["sidecar", "--json", "--config", config]);
  closeAfterTest({ close: () => program.signal("SIGKILL") });
  await program.firstResult();
  return program;
}

async function ask({ socket }: Place): Promise<SidecarStatus> {
  const link = new SidecarLink(socket);
  try {
    await link.hello(SOON_MS);
    return await link.status(SOON_MS);
  } finally {
    link.close();
  }
}

test("F18 twenty times kill -9 of a sidecar", { timeout: TEST_MS_MAX }, async () => {
  const vault = await openVault();
  const place = writeConfig(vault);
  const client = openClient(vault, "kv", { lanes: 0 });
  const ledger = new Ledger();
  for (let round = 0; round < KILLS; round += 1) {
    const program = await startSidecar(place);
    expect(readdirSync(place.arenas), "the arenas of the dead are gone").toEqual([]);
    const engine = await FakeEngine.start(place.socket, { engine: `engine-${round}` });
    const load = ledger.load(engine);
    const { placed } = ledger;
    // Kills at any point from the first plan to a later one; every second time after restores, however slow saves are.
    const isLate = round % 2 === 1;
    await until(() => ledger.turns > round % 5 && (!isLate || ledger.placed > placed), "load");
    await new Promise((resolve) => {
      setTimeout(resolve, (round * 29) % 31);
    });
    program.signal("SIGKILL");
    await program.ended();
    await load;
    engine.close();
    const isFree = async (): Promise<boolean> => (await client.stats(SOON_MS)).reservedBytes === 0;
    await until(isFree, "the vault to give up what never came");
  }
  expect(ledger.placed).toBeGreaterThan(KILLS);

  const program = await startSidecar(place);
  const engine = await FakeEngine.start(place.socket, { engine: "the last" });
  const most = engine.workers[0]!.credits.length;
  for (let number = 0; number < ledger.saved; number += 1) await ledger.read(engine, number);
  expect(ledger.wrong).toBe(0);
  const isIdle = async (): Promise<boolean> => (await ask(place)).engines[0]?.plans === 0;
  await until(isIdle, "the plans to go");
  const { arena, retainedBlocks } = (await ask(place)).engines[0]!;
  expect(arena!.leasedSlots).toBe(most + retainedBlocks);
  expect(arena!.freeSlots + arena!.leasedSlots).toBe(arena!.slotCount);
  engine.close();
  program.signal("SIGTERM");
  expect(await program.ended()).toMatchObject({ exitCode: 0 });
  expect(readdirSync(place.arenas)).toEqual([]);
});
