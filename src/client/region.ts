// Owns the requests to one shared region: a promise for each, which ends in time whatever becomes of the region.
import type { RecordClass } from "../block.ts";
import { TierkvError, toTierkvError } from "../errors.ts";
import type { Coherence } from "../hosts.ts";
import { LANES_POLL_MS } from "../limits/general.ts";
import type { RegionId } from "../native.ts";
import { shmCancel, shmClose, shmLookupNow, shmOpen, shmProgress } from "../native.ts";
import type { FlushedScope, FlushNews } from "../wire/messages.ts";
import { Progress } from "./progress.ts";

/** What came of a request. */
export interface Outcome {
  /** Statuses, a bitmap or flushes. */
  data: Buffer;
  /** The region's last flush, then what the request gives. */
  numbers: readonly number[];
  /** Why the first bad record was refused. */
  reason: string | null;
}

export interface RunOptions {
  timeoutMs: number;
  /** Any of them gives it up. */
  signals: readonly AbortSignal[];
  /** So many bytes were moved since the last time. */
  onProgress?: ((bytes: number) => void) | undefined;
  /** Gives the outcome at once where nothing has to be waited for. */
  now?: ((id: RegionId) => Outcome | null) | undefined;
  /** The error when time runs out. */
  late(): TierkvError;
}

interface Waiting {
  resolve(outcome: Outcome): void;
  reject(error: Error): void;
}

/** How this process has it. */
export interface RegionSide {
  coherence: Coherence;
  /** Which of several machines that have it this is; null: no other has it. */
  host?: number | null;
  /** Whose users have it; null: this user alone. */
  group?: string | null;
}

/** One that is opened for the records of a class. */
export interface RegionOptions extends RegionSide {
  /** `shm:/path`. */
  address: string;
  /** The class of records that is stored here. */
  name: RecordClass;
  /** Of a region that is made; 0: none is. */
  maxBytes: number;
  /** A region of another size is refused. */
  mustFit: boolean;
}

type Info = Awaited<ReturnType<typeof shmOpen>>;

export class Region {
  /** Another number: another region. */
  readonly epoch: number;
  /** Its last flush when it was opened. */
  readonly flush: number;
  /** As it is mapped. */
  readonly coherence: string;
  readonly #id: RegionId;
  readonly #waiting: Map<number, Waiting>;

  /** Makes one of at most `maxBytes` where there is none; 0: makes none. Rejects with SHARED_REGION naming the configuration's key. */
  static async open(path: string, options: RegionOptions): Promise<Region> {
    const { address, name, maxBytes, mustFit, coherence, host = null, group = null } = options;
    const waiting = new Map<number, Waiting>();
    const onEvent = (...event: Event): void => settle(waiting, ...event);
    try {
      const info = await shmOpen(path, maxBytes, mustFit, coherence, host, group, onEvent);
      return new Region(info, waiting);
    } catch (error) {
      const { message: reason } = toTierkvError(error);
      const key = `[cluster] ${name}_cold`;
      throw new TierkvError("SHARED_REGION", { key, value: JSON.stringify(address), reason });
    }
  }

  private constructor({ id, coherence, epoch, flush }: Info, waiting: Map<number, Waiting>) {
    this.#id = id;
    this.#waiting = waiting;
    this.coherence = coherence;
    this.epoch = epoch;
    this.flush = flush;
  }

  /** Rejects when it failed, when time runs out and when the signal fires; slots are safe then: only who leases one writes it. */
  async run(begin: (id: RegionId) => number, options: RunOptions): Promise<Outcome> {
    const { timeoutMs, signals, onProgress, now, late } = options;
    for (const signal of signals) if (signal.aborted) throw signal.reason;
    const id = this.#id;
    const known = now?.(id) ?? null;
    if (known !== null) return known;
    const request = begin(id);
    const progress = new Progress((bytes) => onProgress?.(bytes));
    let giveUp = (_reason: Error): void => {};
    const onAbort = (): void => giveUp(toTierkvError(reasonOf(signals)));
    const timer = setTimeout(() => giveUp(late()), timeoutMs);
    const poll =
      onProgress === undefined
        ? undefined
        : setInterval(() => progress.upTo(shmProgress(id, request)), LANES_POLL_MS);
    for (const signal of signals) signal.addEventListener("abort", onAbort, { once: true });
    try {
      const outcome = await new Promise<Outcome>((resolve, reject) => {
        this.#waiting.set(request, { resolve, reject });
        giveUp = (reason) => {
          this.#waiting.delete(request);
          shmCancel(id, request);
          reject(reason);
        };
      });
      progress.end(outcome.numbers[1] ?? 0);
      return outcome;
    } finally {
      clearTimeout(timer);
      clearInterval(poll);
      for (const signal of signals) signal.removeEventListener("abort", onAbort);
    }
  }

  /** Leaves it once what is under way is done. */
  close(): void {
    shmClose(this.#id);
  }
}

/** Request, its error, what came back. */
type Event = [request: number, error: string | null, data: Buffer, numbers: readonly number[]];

function settle(all: Map<number, Waiting>, ...[request, text, data, numbers]: Event): void {
  const waiting = all.get(request);
  all.delete(request);
  const error = text === null ? null : toTierkvError(new Error(text));
  if (error === null || error.code === "BAD_RECORD") {
    waiting?.resolve({ data, numbers, reason: error?.message ?? null });
  } else {
    waiting?.reject(error);
  }
}

function reasonOf(signals: readonly AbortSignal[]): unknown {
  return signals.find(({ aborted }) => aborted)?.reason;
}

/** Which of the packed keys are there; null: somebody has the lock, so it is to be asked for. */
export function lookUpNow(id: RegionId, namespace: Buffer, keys: Buffer): Outcome | null {
  const known = shmLookupNow(id, namespace, keys);
  return known === null ? null : { data: known.found, numbers: [known.flush], reason: null };
}

const FLUSH_BYTES = 50;

/** Each: number and tenant (8 bytes), class, whether a namespace is named, and that. */
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
