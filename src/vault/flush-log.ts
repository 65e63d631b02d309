// Owns the flushes a vault remembers: numbered, in a file before anything is dropped, told to whoever missed some.
import { existsSync } from "node:fs";
import { basename, dirname } from "node:path";
import { toNamespace } from "../block.ts";
import { toTierkvError } from "../errors.ts";
import {
  FLUSH_NAMESPACES_TOLD_MAX,
  FLUSHES_KEPT_MAX,
  NAME_BYTES_MAX,
  VAULT_MODELS_MAX,
} from "../limits/general.ts";
import type { Logger } from "../log.ts";
import { readOwnFile, writeOwnFile } from "../native.ts";
import { isTenant } from "../tenant.ts";
import { wallClockMs } from "../time.ts";
import type { FlushNews } from "../wire/messages.ts";

/** Each flush may name every namespace that has a model, in hexadecimal, and a name of which JSON escapes every byte. */
const FILE_BYTES_MAX = FLUSHES_KEPT_MAX * (VAULT_MODELS_MAX * 68 + NAME_BYTES_MAX * 6 + 128);

/** What one flush took. */
export interface FlushScope {
  /** In hexadecimal; null: every namespace. */
  namespaces: string[] | null;
  /** 0: both. */
  recordClass: number;
  /** As an engine was given it; empty: not flushed by model. */
  model: string;
  /** As sidecars name it; 0: every one. */
  tenant: number;
}

interface Entry extends FlushScope {
  number: number;
}

interface Kept {
  /** Flushes up to it may be forgotten. */
  base: number;
  /** Flushes up to it have been carried out. */
  done: number;
  flushes: Entry[];
}

export class FlushLog {
  readonly #file: string | null;
  readonly #logger: Logger;
  #kept: Kept = { base: 0, done: 0, flushes: [] };

  /** `file` null: the flushes of this process only. */
  constructor(file: string | null, logger: Logger) {
    this.#file = file;
    this.#logger = logger;
    if (file !== null && existsSync(file)) this.#read(file);
  }

  /** Of the last flush; 0: there was none. */
  get number(): number {
    return this.#kept.flushes.at(-1)?.number ?? this.#kept.base;
  }

  get base(): number {
    return this.#kept.base;
  }

  get all(): readonly Readonly<Entry>[] {
    return this.#kept.flushes;
  }

  /** Those that an earlier run began and did not end. */
  get undone(): readonly Readonly<Entry>[] {
    return this.#kept.flushes.filter(({ number }) => number > this.#kept.done);
  }

  /** Numbers one flush more; `isKept`: it is on disk, or there is no file for it. */
  begin(scope: FlushScope): { number: number; isKept: boolean } {
    const { flushes } = this.#kept;
    // Also above those of a file that was lost: nobody takes one flush for another.
    const number = Math.max(this.number + 1, wallClockMs());
    flushes.push({ number, ...scope });
    while (flushes.length > FLUSHES_KEPT_MAX) {
      this.#kept.base = flushes.shift()?.number ?? this.#kept.base;
    }
    return { number, isKept: this.#write() };
  }

  /** It was carried out, and stays so over a restart. */
  end(number: number): void {
    if (number <= this.#kept.done) return;
    this.#kept.done = number;
    this.#write();
  }

  /** What somebody who knows of flushes up to `known` has to drop. */
  since(known: number): FlushNews {
    const { number } = this;
    const { base, flushes } = this.#kept;
    if (known === number) return { number, everything: false, flushes: [] };
    const missed = flushes.filter((flush) => flush.number > known);
    const names = missed.reduce((sum, { namespaces }) => sum + (namespaces?.length ?? 1), 0);
    const isKnown = known === base || flushes.some((flush) => flush.number === known);
    if (!isKnown || names > FLUSH_NAMESPACES_TOLD_MAX) {
      return { number, everything: true, flushes: [] };
    }
    return { number, everything: false, flushes: missed.map(toWire) };
  }

  #read(file: string): void {
    try {
      const bytes = readOwnFile(dirname(file), basename(file), FILE_BYTES_MAX);
      if (bytes === null) return;
      const kept = JSON.parse(bytes.toString("utf8")) as Kept;
      if (!isKept(kept)) throw new Error("it holds something else");
      this.#kept = kept;
    } catch (error) {
      // Nobody who knew of a flush finds its number here again, and drops all.
      this.#kept = { base: wallClockMs(), done: 0, flushes: [] };
      this.#logger.warn({ err: error, file }, "the flushes of earlier runs could not be read");
      this.#write();
    }
  }

  #write(): boolean {
    if (this.#file === null) return true;
    try {
      const text = JSON.stringify(this.#kept);
      writeOwnFile(dirname(this.#file), basename(this.#file), Buffer.from(text));
      return true;
    } catch (error) {
      const { message: reason } = toTierkvError(error);
      this.#logger.error({ reason, file: this.#file }, "a flush was not written down");
      return false;
    }
  }
}

function toWire(entry: Entry): FlushNews["flushes"][number] {
  const { number, namespaces, recordClass, model, tenant } = entry;
  return {
    number,
    everyNamespace: namespaces === null,
    namespaces: (namespaces ?? []).map((name) => toNamespace(Buffer.from(name, "hex"))),
    recordClass,
    model,
    tenant,
  };
}

function isKept(value: Kept): boolean {
  const isNumber = (number: unknown): boolean => Number.isSafeInteger(number);
  const isName = (name: unknown): boolean =>
    typeof name === "string" && /^[0-9a-f]{64}$/.test(name);
  const isEntry = ({ number, namespaces, recordClass, model, tenant }: Entry): boolean =>
    isNumber(number) &&
    (namespaces === null || (Array.isArray(namespaces) && namespaces.every(isName))) &&
    [0, 1, 2].includes(recordClass) &&
    typeof model === "string" &&
    Buffer.byteLength(model) <= NAME_BYTES_MAX &&
    isTenant(tenant);
  const { base, done, flushes } = value;
  const isBounded = Array.isArray(flushes) && flushes.length <= FLUSHES_KEPT_MAX;
  return isNumber(base) && isNumber(done) && isBounded && flushes.every(isEntry);
}
