// Owns the proof that a vault that was away during a flush serves nothing of it afterwards: from memory, disk or archive.
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ItemStatus } from "../../../src/base/block.ts";
import type * as Limits from "../../../src/base/limits/pool.ts";
import { PoolKey } from "../../../src/discovery/entry.ts";
import { Gossip } from "../../../src/discovery/gossip.ts";
import type { VaultDisk } from "../../../src/vault/server.ts";
import { Dice, testSeed } from "../../faults/lib/random.ts";
import {
  keysOf,
  makeRecord,
  makeRecords,
  NAMESPACE,
  OTHER_NAMESPACE,
} from "../../support/records.ts";
import {
  closeAfterTest,
  logger,
  MIB,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../../support/vaults.ts";
import type { TestVault } from "../../support/vaults.ts";

vi.mock("../../../src/base/limits/pool.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  LISTED_FLUSHES_MAX: 3,
  // A vault hears of its pool when it starts and when another one calls, so that nothing comes by chance.
  GOSSIP_EVERY_MS: 3_600_000,
}));

const TENANT = 77;
const STORED = [ItemStatus.ACCEPTED, ItemStatus.DURABLE, ItemStatus.PRESENT];

let dir = "";
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-missed-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

interface Pooled {
  vault: TestVault;
  gossip: Gossip;
}

const key = new PoolKey(randomBytes(32));

async function open(name: string, peers: readonly string[], disk?: VaultDisk): Promise<Pooled> {
  const file = join(dir, `${name}-pool.json`);
  const gossip = new Gossip({ key, peers, file, certificate: null, logger, onRefused: () => {} });
  closeAfterTest(gossip);
  const flushFile = join(dir, `${name}-flushes.json`);
  const where = disk === undefined ? { flushFile } : { disk };
  return { vault: await openVault({ gossip, ...where }), gossip };
}

/** Opens two vaults that know each other. */
async function openTwo(disk?: VaultDisk): Promise<{ near: Pooled; far: Pooled }> {
  const near = await open("near", []);
  const far = await open("far", [near.vault.address], disk);
  await until(() => near.gossip.book.vault(far.vault.address) !== null, "the other's entry");
  return { near, far };
}

const records = makeRecords(3);
const others = makeRecords(2, { namespace: OTHER_NAMESPACE });

/** Stores records of a tenant and others of nobody in particular. */
async function fill({ vault }: Pooled): Promise<void> {
  const client = openClient(vault);
  const all = [
    ...(await client.put(NAMESPACE, records, SOON_MS, TENANT)),
    ...(await client.put(OTHER_NAMESPACE, others, SOON_MS)),
  ];
  for (const status of all) expect(STORED).toContain(status);
}

/** Says which of both kinds are served. */
async function served({ vault }: Pooled): Promise<{ tenant: number; others: number }> {
  const client = openClient(vault);
  const of = await client.take(NAMESPACE, keysOf(records), SOON_MS);
  const more = await client.take(OTHER_NAMESPACE, keysOf(others), SOON_MS);
  return { tenant: of.records.size, others: more.records.size };
}

const flushTenant = ({ vault }: Pooled): Promise<unknown> =>
  openClient(vault).flush(null, SOON_MS, null, null, TENANT);

const onDisk = (name: string, archive?: string): VaultDisk => ({
  dataDir: join(dir, name),
  diskBytes: 64 * MIB,
  durability: "sync",
  diskTtlS: null,
  ...(archive === undefined
    ? {}
    : { archive: { url: `file://${archive}`, maxBytes: 256 * MIB, afterS: 1 } }),
});

test("F140 what was flushed while a vault was down does not come back from its disk", async () => {
  const disk = onDisk("disk");
  const { near, far } = await openTwo(disk);
  await fill(far);
  await far.vault.close();
  await flushTenant(near);
  const again = await open("far", [near.vault.address], disk);
  expect(await served(again)).toEqual({ tenant: 0, others: 2 });
  // A third start finds nothing to do.
  await fill(again);
  await again.vault.close();
  const third = await open("far", [near.vault.address], disk);
  expect(await served(third)).toEqual({ tenant: 3, others: 2 });
});

test("F140 what was flushed while a vault was down does not come back from its archive, though its disk is lost", async () => {
  const archive = join(dir, "archive");
  const { near, far } = await openTwo(onDisk("disk", archive));
  await fill(far);
  const client = openClient(far.vault);
  const isSent = async (): Promise<boolean> => {
    const { disk, counters } = await client.stats(SOON_MS);
    return (counters["archive_sent_bytes"] ?? 0) > 0 && disk?.archive?.pendingBytes === 0;
  };
  await until(isSent, "the archive");
  await far.vault.close();
  await flushTenant(near);
  const again = await open("far", [near.vault.address], onDisk("new disk", archive));
  expect(await served(again)).toEqual({ tenant: 0, others: 2 });
});

test("F140 what was flushed while a vault could not be reached leaves its memory before it is let in again", async () => {
  const { near, far } = await openTwo();
  await fill(far);
  const { address } = far.vault;
  await near.gossip.admit(address, true);
  await far.vault.pause();
  await flushTenant(near);
  await far.vault.resume();
  expect(await served(far)).toEqual({ tenant: 3, others: 2 });
  expect(await near.gossip.admit(address, false)).toBe(true);
  expect(await served(far)).toEqual({ tenant: 0, others: 2 });
});

test("F140 a vault that missed more flushes than the list has drops everything", async () => {
  const disk = onDisk("disk");
  const { near, far } = await openTwo(disk);
  await fill(far);
  await far.vault.close();
  for (let count = 0; count < 4; count += 1)
    await openClient(near.vault).flush(NAMESPACE, SOON_MS, null, null, TENANT + count);
  expect(near.gossip.book.flushes).toHaveLength(3);
  const again = await open("far", [near.vault.address], disk);
  expect(await served(again)).toEqual({ tenant: 0, others: 0 });
});

test("one flush of all vaults of a pool is one flush in each", async () => {
  const { near, far } = await openTwo();
  await fill(far);
  await fill(near);
  const id = randomBytes(16).toString("hex");
  const flushes = [near, far].map(({ vault }) =>
    openClient(vault).flush(null, SOON_MS, null, null, TENANT, id),
  );
  const flushed = await Promise.all(flushes);
  expect(flushed.map((reply) => reply.number > 0)).toEqual([true, true]);
  await until(() => far.gossip.book.flushes.length === 1, "the list");
  expect([near, far].map(({ gossip }) => gossip.book.flushes.length)).toEqual([1, 1]);
  for (const pooled of [near, far]) expect(await served(pooled)).toEqual({ tenant: 0, others: 2 });
  const wrong = openClient(near.vault).flush(null, SOON_MS, null, null, 0, "x");
  await expect(wrong).rejects.toThrow("32 hexadecimal digits");
});

test("a flush by model takes what was made before it in a namespace that is named only afterwards", async () => {
  const vault = await openVault({ flushFile: join(dir, "flushes.json") });
  const client = openClient(vault);
  await client.nameModel(OTHER_NAMESPACE, "model", SOON_MS);
  const { number } = await client.flush(null, SOON_MS, null, "model");
  await client.nameModel(NAMESPACE, "model", SOON_MS);
  const put = (flushed: number): Promise<ItemStatus[]> =>
    client.put(NAMESPACE, makeRecords(1), SOON_MS, 0, flushed);
  expect(await put(number - 1)).toEqual([ItemStatus.FLUSHED]);
  await vault.close();
  const again = openClient(await openVault({ flushFile: join(dir, "flushes.json") }));
  const late = await again.put(NAMESPACE, makeRecords(1), SOON_MS, 0, number - 1);
  expect(late).toEqual([ItemStatus.FLUSHED]);
  expect(await again.put(NAMESPACE, makeRecords(1), SOON_MS, 0, number)).toEqual([
    ItemStatus.ACCEPTED,
  ]);
});

const STEPS = 60;
const PLAYS = 2;
/** Of two namespaces and three tenants. */
const SCENE_RECORDS = Array.from({ length: 12 }, (_, number) => {
  const namespace = number % 2 === 0 ? NAMESPACE : OTHER_NAMESPACE;
  return { number, namespace, tenant: 1 + (number % 3), ...makeRecord(number, { namespace }) };
});
type SceneRecord = (typeof SCENE_RECORDS)[number];

/** A vault that may be away, and when each of its records was made. */
class Member {
  readonly name: string;
  readonly disk: VaultDisk | undefined;
  readonly made = new Map<number, number>();
  isOut = false;
  #pooled: Pooled | null = null;

  constructor(name: string, disk?: VaultDisk) {
    this.name = name;
    this.disk = disk;
  }

  get isAway(): boolean {
    return this.#pooled === null;
  }

  get pooled(): Pooled {
    return this.#pooled ?? expect.fail(`${this.name} is away`);
  }

  async comes(peers: readonly string[]): Promise<void> {
    this.#pooled = await open(this.name, peers, this.disk);
    this.isOut = false;
  }

  async goes(losesDisk: boolean): Promise<void> {
    await this.pooled.vault.close();
    this.pooled.gossip.close();
    this.#pooled = null;
    if (losesDisk && this.disk) rmSync(this.disk.dataDir, { recursive: true, force: true });
  }

  /** Numbers of the records that it serves. */
  async serves(): Promise<number[]> {
    const client = openClient(this.pooled.vault);
    const found = [NAMESPACE, OTHER_NAMESPACE].map(async (namespace) => {
      const of = SCENE_RECORDS.filter((record) => record.namespace === namespace);
      const { records: taken } = await client.take(namespace, keysOf(of), SOON_MS);
      return [...taken.keys()].map((item) => of[item]!.number);
    });
    const numbers = (await Promise.all(found)).flat();
    client.close();
    return numbers;
  }
}

/** A pool in which one vault always serves, and a witness of what was flushed when. */
class Scene {
  readonly #dice: Dice;
  readonly #near = new Member("near");
  readonly #far: Member[];
  readonly #flushed = new Map<number, number>();
  #clock = 0;

  constructor(seed: number) {
    this.#dice = new Dice(seed);
    this.#far = ["a", "b"].map(
      (name) => new Member(name, onDisk(`disk ${name}`, join(dir, `archive ${name}`))),
    );
  }

  async play(): Promise<void> {
    await this.#near.comes([]);
    for (const far of this.#far) await far.comes([this.#near.pooled.vault.address]);
    for (let step = 0; step < STEPS; step += 1) await this.#step(`step ${step}`);
    for (const member of [this.#near, ...this.#far]) if (!member.isAway) await member.goes(false);
  }

  async #step(step: string): Promise<void> {
    const far = this.#far[this.#dice.below(this.#far.length)]!;
    const { address } = this.#near.pooled.vault;
    const what = this.#dice.below(10);
    if (what < 5) {
      await this.#put(this.#anyOf((member) => !member.isAway));
    } else if (what < 7) {
      await this.#flush(this.#anyOf((member) => !member.isAway && !member.isOut));
      for (const member of this.#far.filter(({ isAway, isOut }) => !isAway && !isOut)) {
        await until(
          async () => (await this.#wrong(member)).length === 0,
          `${step}: ${member.name}`,
        );
      }
    } else if (what < 9) {
      if (far.isAway) {
        await far.comes([address]);
        expect(await this.#wrong(far), `${step}: ${far.name} came back`).toEqual([]);
      } else {
        await far.goes(this.#dice.below(3) === 0);
      }
    } else if (!far.isAway) {
      far.isOut = !far.isOut;
      await this.#near.pooled.gossip.admit(far.pooled.vault.address, far.isOut);
      if (!far.isOut) expect(await this.#wrong(far), `${step}: ${far.name} is in`).toEqual([]);
    }
    expect(await this.#wrong(this.#near), `${step}: near`).toEqual([]);
  }

  #anyOf(isMeant: (member: Member) => boolean): Member {
    const members = [this.#near, ...this.#far].filter(isMeant);
    return members[this.#dice.below(members.length)]!;
  }

  async #put(member: Member): Promise<void> {
    const record = SCENE_RECORDS[this.#dice.below(SCENE_RECORDS.length)]!;
    const client = openClient(member.pooled.vault);
    const [status] = await client.put(record.namespace, [record], SOON_MS, record.tenant);
    client.close();
    expect(STORED).toContain(status);
    if (status !== ItemStatus.PRESENT) member.made.set(record.number, (this.#clock += 1));
  }

  async #flush(member: Member): Promise<void> {
    const client = openClient(member.pooled.vault);
    const tenant = this.#dice.below(4);
    const namespace = this.#dice.below(2) === 0 ? NAMESPACE : OTHER_NAMESPACE;
    const isTaken = (record: SceneRecord): boolean =>
      tenant === 0 ? record.namespace === namespace : record.tenant === tenant;
    await client.flush(tenant === 0 ? namespace : null, SOON_MS, null, null, tenant);
    client.close();
    this.#clock += 1;
    for (const { number } of SCENE_RECORDS.filter(isTaken)) this.#flushed.set(number, this.#clock);
  }

  /** Numbers of records that a vault serves though they were flushed after they were made. */
  async #wrong(member: Member): Promise<number[]> {
    const isWrong = (number: number): boolean =>
      (member.made.get(number) ?? 0) < (this.#flushed.get(number) ?? 0);
    return (await member.serves()).filter(isWrong);
  }
}

test("F141 vaults that go, come back, lose disks or leave the pool between flushes serve nothing flushed", async () => {
  const seed = testSeed();
  for (let play = 0; play < PLAYS; play += 1) {
    await new Scene(seed + play).play();
    rmSync(dir, { recursive: true, force: true });
    dir = mkdtempSync(join(tmpdir(), "tierkv-missed-"));
  }
});
