// Owns the log of flushes: numbered, written before records are dropped, replayed to sidecars that missed some.
import { existsSync } from "node:fs";
import { basename, dirname } from "node:path";
import { toNamespace } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import {
  FLUSH_NAMESPACES_TOLD_MAX,
  FLUSHES_KEPT_MAX,
  NAME_BYTES_MAX,
  VAULT_MODELS_MAX,
} from "../../base/limits/general.ts";
import { LISTED_FLUSHES_MAX } from "../../base/limits/pool.ts";
import type { Logger } from "../../base/log.ts";
import { readOwnFile, writeOwnFile } from "../../base/native.ts";
import { isTenant } from "../../base/tenant.ts";
import { wallClockMs } from "../../base/time.ts";
import type { FlushNews } from "../../wire/messages.ts";

/** Worst case: each flush names every namespace in hexadecimal, and JSON escapes every byte of its model's name. */
const FILE_BYTES_MAX =
  FLUSHES_KEPT_MAX * (VAULT_MODELS_MAX * 68 + NAME_BYTES_MAX * 6 + 128) +
  2 * LISTED_FLUSHES_MAX * 36;

/** The records that one flush covers. */
export interface FlushScope {
  /** In hexadecimal; null: every namespace. */
  namespaces: string[] | null;
  /** 0: both classes. */
  recordClass: number;
  /** The model's name as given to the engine; empty: not flushed by model. */
  model: string;
  /** The tenant's number as sidecars send it; 0: all tenants. */
  tenant: number;
}

interface Entry extends FlushScope {
  number: number;
}

interface Kept {
  /** Flushes up to this number may be forgotten. */
  base: number;
  /** Flushes up to this number have been carried out. */
  done: number;
  flushes: Entry[];
  /** Ids of the pool's flushes that were carried out here. */
  pool: string[];
}

export class FlushLog {
  readonly #file: string | null;
  readonly #logger: Logger;
  #kept: Kept = { base: 0, done: 0, flushes: [], pool: [] };
  /** Numbers of flushes whose records this run has not dropped yet. */
  readonly #underWay = new Set<number>();
  /** Numbers of flushes that a restart must carry out again. */
  readonly #open: Set<number>;

  /** With `file` null, a restart forgets the flushes. */
  constructor(file: string | null, logger: Logger) {
    this.#file = file;
    this.#logger = logger;
    if (file !== null && existsSync(file)) this.#read(file);
    this.#open = new Set(this.undone.map(({ number }) => number));
  }

  /** Number of the last flush that clients may hear of; 0: none yet. */
  get number(): number {
    return this.#told.at(-1)?.number ?? this.#kept.base;
  }

  /** Without flushes under way, because a client told too early could fetch their records again. */
  get #told(): Entry[] {
    const first = Math.min(...this.#underWay);
    return this.#kept.flushes.filter(({ number }) => number < first);
  }

  get base(): number {
    return this.#kept.base;
  }

  get all(): readonly Readonly<Entry>[] {
    return this.#kept.flushes;
  }

  /** Flushes that an earlier run began but did not finish. */
  get undone(): readonly Readonly<Entry>[] {
    return this.#kept.flushes.filter(({ number }) => number > this.#kept.done);
  }

  /** Numbers and writes a new flush; `isKept` is false when the file could not be written. */
  begin(scope: FlushScope): { number: number; isKept: boolean } {
    const { base, flushes } = this.#kept;
    const last = flushes.at(-1)?.number ?? base;
    // The clock keeps numbers above those of a lost file, so that no number ever names two flushes.
    const number = Math.max(last + 1, wallClockMs());
    this.#underWay.add(number);
    this.#open.add(number);
    flushes.push({ number, ...scope });
    while (flushes.length > FLUSHES_KEPT_MAX) {
      this.#kept.base = flushes.shift()?.number ?? base;
      this.#open.delete(this.#kept.base);
    }
    return { number, isKept: this.#write() };
  }

  /** Lets clients hear of a flush, because its records are gone. */
  carriedOut(number: number): void {
    this.#underWay.delete(number);
  }

  /** Marks a flush as carried out, also over a restart; with it earlier flushes of its records, which may have failed. */
  end(number: number): void {
    this.carriedOut(number);
    if (!this.#open.delete(number)) return;
    const ended = this.#kept.flushes.find((entry) => entry.number === number);
    for (const entry of this.#kept.flushes)
      if (ended !== undefined && entry.number < number && covers(ended, entry))
        this.#open.delete(entry.number);
    this.#writeDone();
  }

  /** Marks flushes that could not be recorded, and are by now, as carried out. Those under way go on. */
  endRecorded(): void {
    const recorded = [...this.#open].filter((number) => !this.#underWay.has(number));
    if (recorded.length === 0) return;
    for (const number of recorded) this.#open.delete(number);
    this.#writeDone();
  }

  #writeDone(): void {
    const last = this.#kept.flushes.at(-1)?.number ?? this.#kept.done;
    // Below an earlier flush that did not end, because a restart must carry that one out.
    this.#kept.done = Math.min(last, ...[...this.#open].map((open) => open - 1));
    this.#write();
  }

  /** Adds a namespace that was named only now to the flushes of its model; returns them. */
  extend(model: string, namespace: string): readonly Readonly<Entry>[] {
    const lacks = (entry: Entry): boolean =>
      entry.model === model && entry.namespaces?.includes(namespace) === false;
    const concerned = this.#kept.flushes.filter(lacks);
    for (const entry of concerned) entry.namespaces?.push(namespace);
    if (concerned.length > 0) this.#write();
    return concerned;
  }

  /** Whether a flush of the pool was carried out here. */
  hasOfPool(id: string): boolean {
    return this.#kept.pool.includes(id);
  }

  /** Notes flushes of the pool as carried out; forgets those that the pool's list, `listed`, no longer has. */
  noteOfPool(ids: readonly string[], listed: readonly string[]): void {
    const all = new Set(listed);
    const kept = [...this.#kept.pool, ...ids].filter((id) => all.has(id) || ids.includes(id));
    this.#kept.pool = [...new Set(kept)].slice(-2 * LISTED_FLUSHES_MAX);
    this.#write();
  }

  /** Returns the flushes after `known`, or `everything` when the log cannot name them all. */
  since(known: number): FlushNews {
    const { number } = this;
    const flushes = this.#told;
    if (known === number) return { number, everything: false, flushes: [] };
    const missed = flushes.filter((flush) => flush.number > known);
    const names = missed.reduce((sum, { namespaces }) => sum + (namespaces?.length ?? 1), 0);
    const isKnown = known === this.#kept.base || flushes.some((flush) => flush.number === known);
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
      // The new base matches no number that a sidecar knows, so every sidecar drops everything.
      this.#kept = { base: wallClockMs(), done: 0, flushes: [], pool: [] };
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

/** Whether every record of a scope belongs to a wider scope, too. */
function covers(wide: FlushScope, narrow: FlushScope): boolean {
  const { namespaces } = wide;
  // A model's flush also takes namespaces that are named later.
  const isAlike = narrow.model === "" || narrow.model === wide.model;
  const isNamed =
    namespaces === null ||
    (isAlike && narrow.namespaces?.every((name) => namespaces.includes(name)) === true);
  const isOfClass = wide.recordClass === 0 || wide.recordClass === narrow.recordClass;
  return isNamed && isOfClass && (wide.tenant === 0 || wide.tenant === narrow.tenant);
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
  const { base, done, flushes, pool } = value;
  const isPool = Array.isArray(pool) && pool.every((id) => typeof id === "string");
  const isBounded = Array.isArray(flushes) && flushes.length <= FLUSHES_KEPT_MAX;
  return isNumber(base) && isNumber(done) && isBounded && isPool && flushes.every(isEntry);
}
