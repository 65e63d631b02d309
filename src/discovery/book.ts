// Owns a pool's list as one process knows it: the newest entry of each vault and machine, and the newest flushes, whichever source brought them.
import { createHash } from "node:crypto";
import { LISTED_FLUSHES_MAX, LISTED_MACHINES_MAX, LISTED_VAULTS_MAX } from "../base/limits/pool.ts";
import type { SignedEntry } from "../wire/messages.ts";
import { openEntry } from "./entry.ts";
import type { Entry, FlushEntry, MachineEntry, VaultEntry } from "./entry.ts";

interface Known {
  entry: Entry;
  signed: SignedEntry;
}

const MOST: Readonly<Record<Entry["kind"], number>> = {
  vault: LISTED_VAULTS_MAX,
  machine: LISTED_MACHINES_MAX,
  flush: LISTED_FLUSHES_MAX,
};

export class Book {
  readonly publicKey: Buffer;
  readonly #known = new Map<string, Known>();
  #mark = 1;
  #digest: Buffer | null = null;

  constructor(publicKey: Buffer) {
    this.publicKey = publicKey;
  }

  /** Differs after each change. */
  get mark(): number {
    return this.#mark;
  }

  /** Digest over all entries; equal where two processes know the same. */
  get digest(): Buffer {
    this.#digest ??= [...this.#known.keys()]
      .toSorted()
      .reduce(
        (hash, key) => hash.update(this.#known.get(key)?.signed.signature ?? ""),
        createHash("sha256"),
      )
      .digest();
    return this.#digest;
  }

  /** Takes entries that are signed and newer; `refused` counts those that the pool's key did not sign, `left` those beyond the limit. */
  take(entries: readonly SignedEntry[]): { isChanged: boolean; refused: number; left: number } {
    const before = this.#mark;
    let [refused, left] = [0, 0];
    for (const signed of entries) {
      const entry = openEntry(this.publicKey, signed);
      if (entry === null) {
        refused += 1;
        continue;
      }
      const key = keyOf(entry);
      const known = this.#known.get(key);
      if (known === undefined && this.#count(entry.kind) >= MOST[entry.kind]) {
        if (entry.kind !== "flush") {
          left += 1;
          continue;
        }
        // All processes keep the same ones.
        const [oldest] = this.flushes;
        if (oldest === undefined || isEarlier(entry, oldest)) continue;
        this.#known.delete(keyOf(oldest));
      }
      if (known !== undefined && !isNewer({ entry, signed }, known)) continue;
      this.#known.set(key, { entry, signed });
      this.#mark += 1;
      this.#digest = null;
    }
    return { isChanged: this.#mark !== before, refused, left };
  }

  all(kind?: Entry["kind"]): SignedEntry[] {
    return [...this.#known.values()]
      .filter(({ entry }) => kind === undefined || entry.kind === kind)
      .map(({ signed }) => signed);
  }

  /** Includes vaults that left. */
  get vaults(): VaultEntry[] {
    return this.#entries().filter((entry) => entry.kind === "vault");
  }

  get machines(): MachineEntry[] {
    return this.#entries().filter((entry) => entry.kind === "machine");
  }

  /** The earliest first. */
  get flushes(): FlushEntry[] {
    return this.#entries()
      .filter((entry) => entry.kind === "flush")
      .toSorted((a, b) => (isEarlier(a, b) ? -1 : 1));
  }

  vault(address: string): VaultEntry | null {
    return this.vaults.find((entry) => entry.address === address) ?? null;
  }

  machine(digest: string): MachineEntry | null {
    return this.machines.find((entry) => entry.digest === digest) ?? null;
  }

  #entries(): Entry[] {
    return [...this.#known.values()].map(({ entry }) => entry);
  }

  #count(kind: Entry["kind"]): number {
    return this.#entries().filter((entry) => entry.kind === kind).length;
  }
}

function keyOf(entry: Entry): string {
  if (entry.kind === "vault") return `vault ${entry.address}`;
  return entry.kind === "machine" ? `machine ${entry.digest}` : `flush ${entry.id}`;
}

function isEarlier(a: FlushEntry, b: FlushEntry): boolean {
  return a.atMs === b.atMs ? a.id < b.id : a.atMs < b.atMs;
}

/** Between equal versions the removal wins, else the greater signature, so that all processes choose alike. */
function isNewer(a: Known, b: Known): boolean {
  if (a.entry.version !== b.entry.version) return a.entry.version > b.entry.version;
  if (a.entry.gone !== b.entry.gone) return a.entry.gone;
  return a.signed.signature.compare(b.signed.signature) > 0;
}
