// Owns the common test of archives: a lost disk comes back bit-equal, without flushed records.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect } from "vitest";
import type { ArchiveStats, StatsReply } from "../../src/wire/messages.ts";
import { Program } from "./command-line.ts";
import { TestClient } from "./record-client.ts";
import { keysOf, makeRecord, NAMESPACE, OTHER_NAMESPACE } from "./records.ts";
import type { TestRecord } from "./records.ts";
import { closeAfterTest, logger, MIB, SOON_MS, until } from "./vaults.ts";

const MEMORY = 16 * MIB;
const BATCH = 8;
/** Bytes of a record, so large that an object has parts. */
const PAYLOAD = 500_000;

/** A vault process with an archive, its disk, and the records stored in it. */
export class ArchivedVault {
  readonly config: string;
  readonly dataDir: string;
  readonly #env: Record<string, string>;
  #program: Program | null = null;
  #client: TestClient | null = null;

  constructor(archive: string, env: Record<string, string> = {}) {
    const folder = mkdtempSync(join(tmpdir(), "tierkv-archive-"));
    closeAfterTest({ close: () => rmSync(folder, { recursive: true, force: true }) });
    this.config = join(folder, "tierkv.toml");
    this.dataDir = join(folder, "data");
    this.#env = env;
    const memory = `insecure_lan = true\nlisten = "127.0.0.1:0"\nmax_bytes = ${MEMORY}`;
    const disk = `data_dir = "${this.dataDir}"\ndisk_bytes = "128MiB"`;
    const kept = `archive = "${archive}"\narchive_after_s = 1`;
    writeFileSync(
      this.config,
      `[cluster]\nrole = "kv_cold"\n[vault]\n${memory}\n${disk}\n${kept}\n`,
    );
  }

  get client(): TestClient {
    return this.#client ?? expect.fail("no vault runs");
  }

  get program(): Program {
    return this.#program ?? expect.fail("no vault runs");
  }

  async start(): Promise<void> {
    const program = new Program(["vault", "--json", "--config", this.config], { env: this.#env });
    closeAfterTest({ close: () => program.signal("SIGKILL") });
    this.#program = program;
    const { address } = await program.firstResult();
    this.#client = closeAfterTest(new TestClient({ address: String(address), name: "kv", logger }));
    await until(async () => (await this.stats()).disk?.recovering === false, "recovery");
  }

  async kill(): Promise<void> {
    this.program.signal("SIGKILL");
    await this.program.ended();
    this.client.close();
  }

  /** Kills the vault and removes its disk. */
  async loseDisk(): Promise<void> {
    await this.kill();
    rmSync(this.dataDir, { recursive: true });
  }

  stats(): Promise<StatsReply> {
    return this.client.stats(SOON_MS);
  }

  async archive(): Promise<ArchiveStats> {
    return (await this.stats()).disk?.archive ?? expect.fail("no archive");
  }

  async put(namespace: Buffer, records: readonly TestRecord[]): Promise<void> {
    for (let at = 0; at < records.length; at += BATCH) {
      const batch = records.slice(at, at + BATCH);
      await this.client.put(namespace, batch, SOON_MS);
      const queued = async (): Promise<number> => (await this.stats()).disk?.queuedBytes ?? 0;
      await until(async () => (await queued()) === 0, "the disk to keep up");
    }
  }

  async fetch(namespace: Buffer, records: readonly TestRecord[]): Promise<number> {
    let served = 0;
    for (let at = 0; at < records.length; at += BATCH) {
      const batch = records.slice(at, at + BATCH);
      const taken = await this.client.take(namespace, keysOf(batch), SOON_MS);
      for (const [index, bytes] of taken.records) {
        expect(bytes.equals(batch[index]!.record), `record ${at + index}`).toBe(true);
      }
      served += taken.records.size;
    }
    return served;
  }

  /** Waits until the archive has that many bytes and no file is pending. */
  async settled(bytes: number): Promise<void> {
    await until(async () => {
      const { usedBytes, pendingBytes, failing } = await this.archive();
      return usedBytes >= bytes && pendingBytes === 0 && !failing;
    }, `${bytes} bytes in the archive`);
  }
}

export const bytesOf = (records: readonly TestRecord[]): number =>
  records.reduce((sum, { record }) => sum + record.length, 0);

/** Returns records of one namespace, from a number on. */
export const someRecords = (namespace: Buffer, first: number, count: number): TestRecord[] =>
  Array.from({ length: count }, (_, at) =>
    makeRecord(first + at, { namespace, payloadBytes: PAYLOAD }),
  );

/** Kills the vault, loses its disk, and expects stored records back without flushed ones. */
export async function losesDiskAndServes(vault: ArchivedVault): Promise<void> {
  const kept = someRecords(NAMESPACE, 0, 40);
  const flushed = someRecords(OTHER_NAMESPACE, 100, 20);
  await vault.start();
  await vault.put(OTHER_NAMESPACE, flushed);
  await vault.put(NAMESPACE, kept);
  await vault.settled(bytesOf([...kept, ...flushed]));
  const { records, volatile } = await vault.client.flush(OTHER_NAMESPACE, SOON_MS);
  expect([records > 0, volatile, (await vault.archive()).trouble]).toEqual([true, false, ""]);
  await vault.loseDisk();

  await vault.start();
  expect(await vault.fetch(NAMESPACE, kept)).toBe(kept.length);
  expect(await vault.fetch(OTHER_NAMESPACE, flushed)).toBe(0);
  const { counters } = await vault.stats();
  const { trouble } = await vault.archive();
  expect([trouble, counters["archive_failures"], counters["quarantined"]]).toEqual(["", 0, 0]);
  expect(counters["archive_read"]).toBeGreaterThan(0);

  // Later records are archived, too, and a restart with the disk reads nothing from the archive.
  const more = someRecords(NAMESPACE, 200, 10);
  await vault.put(NAMESPACE, more);
  await vault.settled(bytesOf([...kept, ...more]));
  await vault.kill();
  await vault.start();
  expect(await vault.fetch(NAMESPACE, [...kept, ...more])).toBe(kept.length + more.length);
  expect(await vault.fetch(OTHER_NAMESPACE, flushed)).toBe(0);
}
