// Owns the proof that kill -9 costs a vault with a disk nothing that it called durable, and hardly what it had before its last sync: twenty times, under load, against a ledger.
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { hasBit, ItemStatus } from "../../src/block.ts";
import { isTierkvError } from "../../src/errors.ts";
import { Program } from "../support/command-line.ts";
import { TestClient } from "../support/record-client.ts";
import { keysOf, makeRecord, NAMESPACE } from "../support/records.ts";
import type { TestRecord } from "../support/records.ts";
import { closeAfterTest, logger, MIB, SOON_MS, until } from "../support/vaults.ts";

const KILLS = 20;
const BATCH = 6;
/** Of what was whole in the vault before the last sync that a kill left it time for (goal G13). */
const SEALED_SHARE_MIN = 0.999;
const MEMORY = 16 * MIB;
/** Half of what may wait for the disk, which leaves room for a batch of each load: more would not get there. */
const QUEUED_MAX = MEMORY / 8;
/** Of a machine that is busy with other things. */
const TEST_MS_MAX = 180_000;

let folder = "";
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "tierkv-kill-"));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

/** Small, middling and several pages: the same index always gives the same bytes. */
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

/** Bytes that wait for the disk; none was turned away. */
async function queued(client: TestClient): Promise<number> {
  const { disk, counters } = await client.stats(SOON_MS);
  expect(counters["disk_skipped"]).toBe(0);
  return disk?.queuedBytes ?? 0;
}

/** What was sent, and what the vault itself called durable: kept here, away from it. */
class Ledger {
  sent = 0;
  batches = 0;
  wrong = 0;
  readonly durable = new Set<number>();
  /** Whole in the vault before a sync, whether anyone asked for its durability or not. */
  readonly sealed = new Set<number>();
  /** Since the vault started: what it took, in the order of its answers. */
  #taken: { index: number; at: number }[] = [];
  #clock = 0;
  /** When the youngest record was sent that is known to be on the disk: a sync came after that. */
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

  /** Reads what was stored before, until the vault is gone. */
  async read(client: TestClient): Promise<never> {
    for (let turn = 0; ; turn += 1) {
      const first = (turn * 37) % Math.max(1, this.sent - BATCH);
      await this.#fetch(
        client,
        Array.from({ length: BATCH }, (_, at) => first + at),
      );
    }
  }

  /** What would have been before its last sync if it were gone now, of all rounds. */
  get sealedByNow(): number {
    return this.sealed.size + this.#taken.filter(({ at }) => at < this.#syncedAt).length;
  }

  /** The vault is gone: what it had before its last sync, whoever sent it, ought to be on the disk. */
  killed(): void {
    for (const { index, at } of this.#taken) if (at < this.#syncedAt) this.sealed.add(index);
    this.#taken = [];
    this.#syncedAt = 0;
  }

  /** How many of the durable and of the sealed ones are not served, and how many are served at all. */
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
/** So that in the end there are more than kills. */
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
      // From the first batch on to some segments later, and anywhere within a batch.
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
