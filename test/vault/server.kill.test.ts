// Owns the proof that kill -9 costs a vault with a disk no durable record and few sealed ones: twenty times, under load.
// @module-tag alone
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { hasBit, ItemStatus } from "../../src/base/block.ts";
import { isTierkvError } from "../../src/base/errors.ts";
import { Program } from "../support/command-line.ts";
import { TestClient } from "../support/record-client.ts";
import { keysOf, makeRecord, NAMESPACE } from "../support/records.ts";
import type { TestRecord } from "../support/records.ts";
import { closeAfterTest, logger, MIB, SOON_MS, until } from "../support/vaults.ts";

const KILLS = 20;
const BATCH = 6;
/** Share of the records that were whole before the last sync that the kill left time for (goal G13). */
const SEALED_SHARE_MIN = 0.999;
const MEMORY = 16 * MIB;
/** Half of the disk's queue, which leaves room for a batch of each load. */
const QUEUED_MAX = MEMORY / 8;
/** Time-out for a busy machine. */
const TEST_MS_MAX = 180_000;

let folder = "";
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "tierkv-kill-"));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

/** Makes small, medium and multi-page records; the same index always gives the same bytes. */
function recordAt(index: number): TestRecord {
  return makeRecord(index, { payloadBytes: 500 + ((index * 7919) % 150_000) });
}

class KilledVault {
  readonly program: Program;
  readonly client: TestClient;

  private constructor(program: Program, address: string) {
    this.program = program;
    this.client = closeAfterTest(new TestClient({ address, name: "kv", logger }));
  }

  static async start(config: string): Promise<KilledVault> {
    const program = new Program(["vault", "--json", "--config", config]);
    closeAfterTest({ close: () => program.signal("SIGKILL") });
    const { address } = await program.firstResult();
    return new KilledVault(program, String(address));
  }

  async kill(): Promise<void> {
    this.program.signal("SIGKILL");
    await this.program.ended();
    this.client.close();
  }
}

/** Returns the bytes queued for the disk; none was refused. */
async function queued(client: TestClient): Promise<number> {
  const { disk, counters } = await client.stats(SOON_MS);
  expect(counters["disk_skipped"]).toBe(0);
  return disk?.queuedBytes ?? 0;
}

/** Records sent, and the vault's durable ones, kept in the test. */
class Ledger {
  sent = 0;
  batches = 0;
  wrong = 0;
  readonly durable = new Set<number>();
  /** Records whole in the vault before a sync, whether or not their durability was queried. */
  readonly sealed = new Set<number>();
  /** Records accepted since the vault started, in the order of its answers. */
  #taken: { index: number; at: number }[] = [];
  #clock = 0;
  /** Send time of the youngest record known to be on disk, because a sync followed it. */
  #syncedAt = 0;

  /** Stores until the vault is gone. */
  async load(client: TestClient): Promise<never> {
    for (;;) {
      await until(async () => (await queued(client)) < QUEUED_MAX, "the disk to keep up");
      const indices = Array.from({ length: BATCH }, () => this.sent++);
      const records = indices.map(recordAt);
      const sentAt = ++this.#clock;
      const statuses = await client.put(NAMESPACE, records, SOON_MS);
      const takenAt = ++this.#clock;
      for (const [at, index] of indices.entries()) {
        const isTaken = statuses[at] === ItemStatus.ACCEPTED || statuses[at] === ItemStatus.DURABLE;
        if (isTaken) this.#taken.push({ index, at: takenAt });
      }
      const durable = await client.durable(NAMESPACE, keysOf(records), SOON_MS);
      for (const [at, index] of indices.entries()) {
        if (statuses[at] !== ItemStatus.DURABLE && !hasBit(durable, at)) continue;
        this.durable.add(index);
        this.#syncedAt = Math.max(this.#syncedAt, sentAt);
      }
      this.batches += 1;
    }
  }

  /** Reads earlier records until the vault is gone. */
  async read(client: TestClient): Promise<never> {
    for (let turn = 0; ; turn += 1) {
      const first = (turn * 37) % Math.max(1, this.sent - BATCH);
      await this.#fetch(
        client,
        Array.from({ length: BATCH }, (_, at) => first + at),
      );
    }
  }

  /** Returns the records of all rounds that were whole before the last sync, if the vault were killed now. */
  get sealedByNow(): number {
    return this.sealed.size + this.#taken.filter(({ at }) => at < this.#syncedAt).length;
  }

  /** Notes a kill: records whole before the last sync should be on disk, whoever sent them. */
  killed(): void {
    for (const { index, at } of this.#taken) if (at < this.#syncedAt) this.sealed.add(index);
    this.#taken = [];
    this.#syncedAt = 0;
  }

  /** Returns the durable and the sealed records that are missing, and the records served. */
  async check(client: TestClient): Promise<{ lost: number; sealedLost: number; served: number }> {
    const served = await this.#fetch(client, [...Array(this.sent).keys()]);
    const without = (indices: Set<number>): number =>
      [...indices].filter((index) => !served.has(index)).length;
    return {
      lost: without(this.durable),
      sealedLost: without(this.sealed),
      served: served.size,
    };
  }

  async #fetch(client: TestClient, indices: readonly number[]): Promise<Set<number>> {
    const records = indices.map(recordAt);
    const fetched = await client.take(NAMESPACE, keysOf(records), SOON_MS);
    const wrong = [...fetched.records].filter(([at, bytes]) => !bytes.equals(records[at]!.record));
    this.wrong += wrong.length;
    return new Set([...fetched.records.keys()].map((at) => indices[at]!));
  }
}

async function startRecovered(config: string): Promise<KilledVault> {
  const vault = await KilledVault.start(config);
  const isRecovered = async (): Promise<boolean> =>
    (await vault.client.stats(SOON_MS)).disk?.recovering === false;
  await until(isRecovered, "recovery");
  return vault;
}

const DISKS = ["group", "sync"];
/** Records synced per round, so that in the end there are more than kills. */
const SYNCED_PER_ROUND = (KILLS + 1) / (KILLS / DISKS.length - 1);

test.each(DISKS)(
  "F3 kill -9 of a vault, durability = %s",
  { timeout: TEST_MS_MAX },
  async (durability) => {
    const config = join(folder, "tierkv.toml");
    const dataDir = join(folder, "data");
    const disk = `data_dir = "${dataDir}"\ndisk_bytes = "512MiB"\ndurability = "${durability}"`;
    const memory = `insecure_lan = true\nlisten = "127.0.0.1:0"\nmax_bytes = ${MEMORY}`;
    writeFileSync(config, `[cluster]\nrole = "kv_cold"\n[vault]\n${memory}\n${disk}\n`);
    const ledger = new Ledger();
    for (let round = 0; round < KILLS / DISKS.length; round += 1) {
      const vault = await startRecovered(config);
      const { client } = vault;
      expect(await ledger.check(client)).toMatchObject({ lost: 0 });
      const before = ledger.batches;
      const loads = Promise.allSettled([
        ledger.load(client),
        ledger.load(client),
        ledger.read(client),
      ]);
      // From the first batch to some segments later, at any point within a batch.
      const least = round * SYNCED_PER_ROUND;
      const isLoaded = (): boolean =>
        ledger.batches >= before + round &&
        Math.min(ledger.durable.size, ledger.sealedByNow) >= least;
      await until(isLoaded, "load, and enough of it synced, however slow the disk is");
      await new Promise((resolve) => {
        setTimeout(resolve, (round * 263) % 97);
      });
      await vault.kill();
      for (const ended of await loads) {
        const reason: unknown = ended.status === "rejected" ? ended.reason : null;
        expect(isTierkvError(reason), String(reason)).toBe(true);
      }
      ledger.killed();
    }
    expect(ledger.durable.size).toBeGreaterThan(KILLS);

    const last = await startRecovered(config);
    const { lost, sealedLost, served } = await ledger.check(last.client);
    expect([lost, ledger.wrong]).toEqual([0, 0]);
    const { size: sealed } = ledger.sealed;
    expect(sealed, "a sync came in most rounds").toBeGreaterThan(KILLS);
    expect(1 - sealedLost / sealed).toBeGreaterThanOrEqual(SEALED_SHARE_MIN);
    const counted = { durability, sealed, sealedLost, durable: ledger.durable.size, lost };
    process.stdout.write(`kills ${JSON.stringify(counted)}\n`);
    expect(served).toBeGreaterThanOrEqual(ledger.durable.size);
    const segments = (): string[] => readdirSync(dataDir).filter((name) => name.endsWith(".seg"));
    const held = (): number =>
      segments().reduce((sum, name) => sum + statSync(join(dataDir, name)).size, 0);
    const isAgreed = async (): Promise<boolean> =>
      (await last.client.stats(SOON_MS)).disk?.usedBytes === held();
    await until(isAgreed, "files and the vault's own count to agree");
    const others = readdirSync(dataDir).filter((name) => !name.endsWith(".seg"));
    expect(others).toEqual(["lock"]);
    const { counters, reservedBytes } = await last.client.stats(SOON_MS);
    expect([counters["disk_alarms"], reservedBytes]).toEqual([0, 0]);
  },
);
