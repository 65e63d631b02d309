// Owns a vault's weight, the factor on its capacity in a pool: set by an admin, kept over a restart.
import { basename, dirname, join } from "node:path";
import { toTierkvError } from "../../base/errors.ts";
import { VAULT_WEIGHT_LEAST, VAULT_WEIGHT_MOST } from "../../base/limits/pool.ts";
import type { Logger } from "../../base/log.ts";
import type { StoreId } from "../../base/native.ts";
import { readOwnFile, storeDiskStats, storeStats, writeOwnFile } from "../../base/native.ts";

const FILE_BYTES_MAX = 64;

export class Weight {
  readonly #file: string | null;
  readonly #logger: Logger;
  #value = 1;

  /** With `file` null, a restart forgets the weight. */
  constructor(file: string | null, logger: Logger) {
    this.#file = file;
    this.#logger = logger;
    if (file !== null) this.#read(file);
  }

  get value(): number {
    return this.#value;
  }

  /** Returns whether a restart will keep it. */
  set(value: number): boolean {
    this.#value = value;
    if (this.#file === null) return false;
    try {
      writeOwnFile(dirname(this.#file), basename(this.#file), Buffer.from(String(value)));
      return true;
    } catch (error) {
      const { message: reason } = toTierkvError(error);
      this.#logger.error({ reason, file: this.#file }, "the vault's weight was not written down");
      return false;
    }
  }

  #read(file: string): void {
    try {
      const bytes = readOwnFile(dirname(file), basename(file), FILE_BYTES_MAX);
      if (bytes === null) return;
      const value = Number(bytes.toString("utf8"));
      if (!isWeight(value)) throw new Error("it holds something else");
      this.#value = value;
    } catch (error) {
      this.#logger.warn({ err: error, file }, "the vault's weight could not be read: it is 1");
    }
  }
}

/** Returns the path beside the file of flushes, named alike. */
export function weightFile(flushFile: string | null): string | null {
  if (flushFile === null) return null;
  return join(dirname(flushFile), basename(flushFile).replace("flushes", "weight"));
}

/** Returns the vault's share of a pool: its larger tier, because the disk also holds the records in memory. */
export function shareBytes({ store, weight }: { store: StoreId; weight: Weight }): number {
  const capacity = Math.max(storeStats(store).maxBytes, storeDiskStats(store)?.maxBytes ?? 0);
  return Math.max(1, Math.round(capacity * weight.value));
}

export function isWeight(value: number): boolean {
  return value >= VAULT_WEIGHT_LEAST && value <= VAULT_WEIGHT_MOST;
}
