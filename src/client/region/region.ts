// Owns the requests to one shared region, and its opening.
import { existsSync } from "node:fs";
import { dirname } from "node:path";
import type { RecordClass } from "../../base/block.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { sharedPath } from "../../base/hosts.ts";
import type { Coherence } from "../../base/hosts.ts";
import type { RegionId } from "../../base/native.ts";
import {
  shmCancel,
  shmCheckGroup,
  shmClose,
  shmLookupNow,
  shmOpen,
  shmProgress,
} from "../../base/native.ts";
import type { FlushedScope, FlushNews } from "../../wire/messages.ts";
import { Requests } from "../requests.ts";
import type { Outcome, RunOptions } from "../requests.ts";

export interface RegionRunOptions extends RunOptions {
  /** Returns the outcome at once, where no wait is needed. */
  now?: ((id: RegionId) => Outcome | null) | undefined;
}

/** How this process maps a region. */
export interface RegionSide {
  coherence: Coherence;
  /** Number of this machine among the ones that map it; null: no other does. */
  host?: number | null;
  /** Group whose users may map it; null: this user alone. */
  group?: string | null;
}

/** A region opened for one class of records. */
export interface RegionOptions extends RegionSide {
  /** `shm:/path`. */
  address: string;
  /** The class of records that is stored here. */
  name: RecordClass;
  /** Size of a new region in bytes; 0: none is made. */
  maxBytes: number;
  /** True: a region of another size is refused. */
  mustFit: boolean;
}

type Info = Awaited<ReturnType<typeof shmOpen>>;

export class Region {
  /** Identity of the region. */
  readonly epoch: number;
  /** Number of its last flush at opening. */
  readonly flush: number;
  /** How it is mapped. */
  readonly coherence: string;
  readonly #id: RegionId;
  readonly #requests: Requests;

  /** Opens a region, made with at most `maxBytes` if missing; 0: none is made. Rejects with SHARED_REGION naming the configuration's key. */
  static async open(path: string, options: RegionOptions): Promise<Region> {
    const { address, name, maxBytes, mustFit, coherence, host = null, group = null } = options;
    const requests = new Requests();
    const { settle } = requests;
    try {
      checkDevice(path);
      const info = await shmOpen(path, maxBytes, mustFit, coherence, host, group, settle);
      return new Region(info, requests);
    } catch (error) {
      throw refusal(name, address, error);
    }
  }

  private constructor({ id, coherence, epoch, flush }: Info, requests: Requests) {
    this.#id = id;
    this.#requests = requests;
    this.coherence = coherence;
    this.epoch = epoch;
    this.flush = flush;
  }

  /** Runs one request, as `Requests.run`; `numbers[0]` of its outcome is the region's last flush. */
  async run(begin: (id: RegionId) => number, options: RegionRunOptions): Promise<Outcome> {
    const { signals, now } = options;
    for (const signal of signals) if (signal.aborted) throw signal.reason;
    const id = this.#id;
    const known = now?.(id) ?? null;
    if (known !== null) return known;
    return await this.#requests.run(
      () => begin(id),
      (request) => shmCancel(id, request),
      (request) => shmProgress(id, request),
      options,
    );
  }

  /** Leaves the region once its running requests are done. */
  close(): void {
    shmClose(this.#id);
  }
}

/** Throws what a start would say of a region's place, and makes nothing. */
export function checkPlace(name: RecordClass, address: string): void {
  try {
    checkDevice(sharedPath(address) ?? "");
  } catch (error) {
    throw refusal(name, address, error);
  }
}

/** Throws where this machine has no such group. */
export function checkGroup(group: string): void {
  shmCheckGroup(group);
}

function refusal(name: RecordClass, address: string, error: unknown): TierkvError {
  const { message: reason } = toTierkvError(error);
  const key = `[cluster] ${name}_cold`;
  return new TierkvError("SHARED_REGION", { key, value: JSON.stringify(address), reason });
}

/** Throws where a region would be made in the place of a device that is not there. */
function checkDevice(path: string): void {
  if (dirname(path) !== "/dev" || existsSync(path)) return;
  const reason =
    "there is no such device: load its module or correct its number; a region that is a file lies in /dev/shm";
  throw new TierkvError("ARENA_FAILED", { reason });
}

/** Looks packed keys up at once; null: the lock is taken, so a request is needed. */
export function lookUpNow(id: RegionId, namespace: Buffer, keys: Buffer): Outcome | null {
  const known = shmLookupNow(id, namespace, keys);
  return known === null ? null : { data: known.found, numbers: [known.flush], reason: null };
}

const FLUSH_BYTES = 50;

/** Reads flushes of 50 bytes each: number and tenant (8 bytes each), class, whether a namespace is named, and its 32 bytes. */
export function newsOf({ data, numbers }: Outcome): FlushNews {
  const flushes: FlushedScope[] = [];
  for (let at = 0; at < data.length; at += FLUSH_BYTES) {
    const everyNamespace = data[at + 17] === 0;
    flushes.push({
      number: Number(data.readBigUInt64LE(at)),
      tenant: Number(data.readBigUInt64LE(at + 8)),
      recordClass: data[at + 16] ?? 0,
      everyNamespace,
      namespaces: everyNamespace ? [] : [Buffer.from(data.subarray(at + 18, at + FLUSH_BYTES))],
      model: "",
    });
  }
  return { number: numbers[0] ?? 0, everything: numbers[1] === 0, flushes };
}
