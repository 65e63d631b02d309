// Owns the proof that with parity, reads over damaged records and a lost vault give right bytes, and all that can be rebuilt.
import { expect, test } from "vitest";
import { packKeys, PARITY_GROUP } from "../../../src/base/block.ts";
import { RUN_BLOCKS } from "../../../src/base/limits/pool.ts";
import { Pool } from "../../../src/sidecar/vaults/pools.ts";
import { Dice, testSeed } from "../../faults/lib/random.ts";
import { saveAll } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import type { Block } from "../../support/shim-client.ts";
import { corruptStored, openSidecar } from "../../support/sidecars.ts";
import { openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

const PAGE = 8192;
const LENGTH = 32;
const PROMPTS = 100;
const DAMAGED = 0.06;
const PARITY = { when: "always", waitMs: 30_000, redundancy: "parity" } as const;

/** Place of every record of a prompt, and its soundness. */
class Model {
  readonly #owners: Uint8Array;
  readonly #pool: Pool;
  readonly #hashes: Buffer;
  readonly bad = new Set<string>();

  constructor(pool: Pool, blocks: readonly Block[]) {
    this.#pool = pool;
    this.#hashes = hashesOf(blocks);
    this.#owners = pool.placesOf(this.#hashes).owners.slice();
  }

  /** Returns the parts from which block `at` is rebuilt; called while all vaults are up. */
  partsOf(at: number): { name: string; vault: number }[] {
    const first = at - (at % RUN_BLOCKS);
    const kin = this.#pool.kinOf(this.#hashes.subarray(first * 32), at)!;
    const others = kin.others.map((other) => ({ name: `${other.at}`, vault: other.vault }));
    return [...others, { name: `parity ${kin.last}`, vault: kin.vault }];
  }

  /** Returns the leading blocks that must come back. */
  prefix(parts: readonly (readonly { name: string; vault: number }[])[], lost: number): number {
    const isThere = ({ name, vault }: { name: string; vault: number }): boolean =>
      vault !== lost && !this.bad.has(name);
    let at = 0;
    while (at < LENGTH) {
      const own = { name: `${at}`, vault: this.#owners[at]! };
      if (!isThere(own) && !parts[at]!.every(isThere)) break;
      at += 1;
    }
    return at;
  }
}

interface Modelled {
  model: Model;
  parts: { name: string; vault: number }[][];
}

/** Flips a bit of some of a prompt's records, of blocks and of parity. */
function damage(
  { model, parts }: Modelled,
  blocks: readonly Block[],
  namespace: Buffer,
  dice: Dice,
): void {
  const parities = new Set(parts.map((of) => of.at(-1)!.name));
  for (const name of [...blocks.keys()].map(String).concat(...parities)) {
    if (dice.next() >= DAMAGED) continue;
    const group = name.startsWith("parity") ? PARITY_GROUP : 0;
    const { hash } = blocks[Number(name.replace("parity ", ""))]!;
    corruptStored(namespace, packKeys(hash, group, 0), dice.below(PAGE));
    model.bad.add(name);
  }
}

test("F79 parity: of thousands of blocks none comes back with wrong bytes, and none is missed that can be rebuilt", async () => {
  const seed = testSeed();
  const dice = new Dice(seed);
  const vaults = [await openVault(), await openVault(), await openVault()];
  const clients = vaults.map((vault) => openClient(vault));
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...PARITY });
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  const shape = { maxModelLen: 16 * LENGTH };
  const engine = await FakeEngine.start(sidecar.socketPath, shape);
  const prompts = Array.from({ length: PROMPTS }, (_none, at) =>
    makeBlocks(`${seed} ${at}`, LENGTH, PAGE),
  );
  await saveAll({ engine, sidecar }, prompts.flat());
  await until(() => sidecar.counters.get("parity_saved") === (PROMPTS * LENGTH) / 2, "parity");
  const pool = new Pool("kv", { clients, hasParity: true });
  const models = prompts.map((blocks) => {
    const model = new Model(pool, blocks);
    return { model, parts: blocks.map((_block, at) => model.partsOf(at)) };
  });
  for (const [number, of] of models.entries()) damage(of, prompts[number]!, engine.namespace, dice);
  const others = vaults.map((vault) => openClient(vault));
  const reading = await openSidecar({ vaults: { kv: others, ssm: null }, ...PARITY });
  const reader = await FakeEngine.start(reading.socketPath, shape);
  const [wrong, missed]: [string[], string[]] = [[], []];
  const lost = dice.below(vaults.length);
  for (const [number, blocks] of prompts.entries()) {
    if (number === PROMPTS / 2) await vaults[lost]!.close();
    const view = await reader.done(reader.prefetch(hashesOf(blocks)));
    const placed = view.placed.get(0)?.length ?? 0;
    for (let at = 0; at < placed; at += 1)
      if (!reader.holds(view, at, blocks[at]!)) wrong.push(`${number}: ${at}`);
    const { model, parts } = models[number]!;
    const must = model.prefix(parts, number < PROMPTS / 2 ? -1 : lost);
    // The first restore after the loss may be the one that detects it.
    if (placed !== must) missed.push(`${number}: ${placed} of ${must}`);
    reader.release(view.plan);
  }
  expect([wrong, missed]).toEqual([[], []]);
  const { counters } = reading;
  expect(counters.get("blocks_rebuilt")).toBeGreaterThan(200);
  expect(counters.get("rebuilds_failed")).toBeGreaterThan(0);
});
