// Owns one engine's fetches: wanted blocks in the order needed, cut into windows, a few in flight per vault, with detection of stalls.
import type { RecordClass } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import type { TierkvError } from "../../base/errors.ts";
import { failpoint } from "../../base/failpoint.ts";
import {
  CALL_TIMEOUT_MS,
  FETCH_WINDOW_BYTES,
  FETCH_WINDOW_KEYS,
  FETCHES_IN_FLIGHT_MAX,
} from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import type { ArenaId } from "../../base/native.ts";
import { BusyTime, soon } from "../../base/time.ts";
import type { BlockSource, BlockStore } from "../../client/source.ts";
import type { EngineRates } from "../../cost/engine-rates.ts";
import type { Link } from "../../cost/link.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { Block } from "../slots/block.ts";
import type { DoneReason } from "../socket/messages.ts";
import type { FetchPriority } from "../vaults/fetch-priority.ts";
import type { VaultClients } from "../vaults/pools.ts";
import type { Links } from "../vaults/vaults.ts";
import { FetchQueue } from "./fetch-queue.ts";
import type { GroupRange } from "./plan.ts";
import { Window } from "./window.ts";

export interface FetcherOptions {
  cache: BlockCache;
  arena: ArenaId;
  shards: number;
  fidelityOf(namespace: Buffer): number;
  vaults: VaultClients;
  links: Links;
  rates: EngineRates;
  priority: FetchPriority;
  /** Longest duration of one call, in milliseconds. */
  callMs: number;
  /** Milliseconds without a byte after which a call is given up, unless the first block's user has more patience. */
  stallMs: number;
  geometryOf(group: number, shard: number): number;
  /** Largest wire bytes of one block with all shards. */
  blockBytes(group: number): number;
  counters: SidecarCounters;
  logger: Logger;
}

/** Queue and windows of one vault, its archive's included. Blocks no longer wanted are skipped when met. */
interface Source {
  readonly client: BlockStore;
  readonly link: Link;
  queue: FetchQueue;
  windows: Set<Window>;
  /** Largest wire bytes of the blocks that wait or are on their way. */
  pendingBytes: number;
}

export class Fetcher {
  readonly #options: FetcherOptions;
  /** By class and vault; a vault that takes over an index gets a new entry. */
  readonly #sources: Readonly<Record<RecordClass, Map<number, Source>>> = {
    kv: new Map(),
    ssm: new Map(),
  };
  readonly #left = new Set<Source>();
  readonly #blockBytes = new Map<number, number>();
  readonly #busy: BusyTime;
  /** Bytes of all blocks taken so far. */
  #takenBytes = 0;
  #isPumping = false;
  #isClosed = false;

  constructor(options: FetcherOptions) {
    this.#options = options;
    this.#busy = new BusyTime((us) => options.counters.add("fetch_busy_us", us));
  }

  get inFlight(): number {
    return this.#all.reduce((sum, { windows }) => sum + windows.size, 0);
  }

  /** Largest wire bytes of a vault that are on their way, or wait with a turn up to `turn`. */
  pendingBytes(
    recordClass: RecordClass,
    vault: number,
    turn: number = Number.POSITIVE_INFINITY,
  ): number {
    const source = this.#sources[recordClass].get(vault);
    return source === undefined ? 0 : source.pendingBytes - source.queue.bytesAfter(turn);
  }

  get #all(): Source[] {
    return [...this.#sources.kv.values(), ...this.#sources.ssm.values(), ...this.#left];
  }

  #sourceOf({ recordClass, owner }: Block): Source | undefined {
    const client = this.#options.vaults[recordClass][owner];
    const link = this.#options.links[recordClass][owner];
    const sources = this.#sources[recordClass];
    const known = sources.get(owner);
    if (known?.client === client) return known;
    for (const gone of this.#left) if (gone.windows.size === 0) this.#left.delete(gone);
    if (known !== undefined) {
      // The vault that had this index is closed, so its waiting blocks will not come.
      for (const one of known.queue.all()) this.#options.cache.fail(one, "vault_down");
      known.queue = new FetchQueue();
      this.#left.add(known);
    }
    if (client === undefined || link === undefined) return undefined;
    const queue = new FetchQueue();
    const source = { client, link, queue, windows: new Set<Window>(), pendingBytes: 0 };
    sources.set(owner, source);
    return source;
  }

  /** Returns the turn of a plan that begins now with these ranges: see FetchQueue. */
  turnOf(ranges: readonly GroupRange[]): number {
    const { blockBytes } = this.#options;
    return ranges.reduce(
      (sum, { group, count }) => sum + count * blockBytes(group),
      this.#takenBytes,
    );
  }

  /** Queues a wanted block behind the others of its turn; turn 0 comes first. */
  add(block: Block, turn = 0): void {
    const source = this.#sourceOf(block);
    if (source === undefined) {
      this.#options.cache.fail(block, "end_of_hit");
      return;
    }
    source.queue.add(block, turn, this.#bytes(block));
    source.pendingBytes += this.#bytes(block);
    // Plans that came and went while a call hung leave unwanted blocks behind.
    if (source.queue.size > this.#options.cache.capacity * 2) {
      const before = this.#bytesOf(source.queue.all());
      source.queue.keep(
        (other) => this.#isWanted(other, source),
        (left) => this.#bytesOf(left),
      );
      source.pendingBytes -= before - this.#bytesOf(source.queue.all());
    }
    this.#pumpSoon();
  }

  /** Called when a block that is being fetched has lost its last user. */
  dropUnwanted(block: Block): void {
    block.call?.dropUnwanted();
  }

  /** Gives everything up; no slot is written afterwards. */
  close(): void {
    this.#isClosed = true;
    for (const source of this.#all) {
      const left = source.queue.all();
      source.pendingBytes -= this.#bytesOf(left);
      for (const block of left) this.#options.cache.fail(block, "deadline");
      source.queue = new FetchQueue();
      for (const window of source.windows) window.end("deadline");
    }
  }

  /** Pumps once the present work is done, so that a plan's blocks share windows. */
  #pumpSoon(): void {
    if (this.#isPumping) return;
    this.#isPumping = true;
    soon(() => {
      this.#isPumping = false;
      if (this.#isClosed) return;
      for (const source of this.#all) this.#pump(source);
    });
  }

  #pump(source: Source): void {
    const batchBytes = source.link.batchBytes("down", FETCH_WINDOW_BYTES);
    while (source.windows.size < FETCHES_IN_FLIGHT_MAX) {
      const blocks = this.#nextBlocks(source, batchBytes);
      if (blocks.length === 0) return;
      this.#start(source, blocks);
    }
  }

  /** Takes the next blocks of one namespace and gives them slots; empty when nothing waits. */
  #nextBlocks(source: Source, batchBytes: number): readonly Block[] {
    const { cache } = this.#options;
    for (;;) {
      const blocks = this.#take(source, batchBytes);
      const count = blocks.length === 0 ? 0 : cache.startFetch(blocks);
      if (count === blocks.length) return blocks;
      const left = blocks.slice(count);
      source.pendingBytes -= this.#bytesOf(left);
      for (const block of left) cache.fail(block, "no_slot");
      if (count > 0) return blocks.slice(0, count);
    }
  }

  /** Takes the next wanted blocks of one namespace, tenant and source, as many as one call brings. */
  #take(source: Source, batchBytes: number): Block[] {
    const { shards, rates } = this.#options;
    const blocks: Block[] = [];
    let bytes = 0;
    for (let block = source.queue.first; block !== undefined; block = source.queue.first) {
      if (!this.#isWanted(block, source)) {
        source.pendingBytes -= this.#bytes(block);
        source.queue.shift(this.#bytes(block));
        continue;
      }
      bytes += this.#bytes(block);
      const isFull =
        rates.wireBytes(bytes) > batchBytes ||
        (blocks.length + 1) * shards > FETCH_WINDOW_KEYS ||
        blocks[0]?.namespace.equals(block.namespace) === false ||
        blocks[0]?.run.tenant !== block.run.tenant ||
        blocks[0]?.source !== block.source;
      if (isFull && blocks.length > 0) return blocks;
      blocks.push(block);
      source.queue.shift(this.#bytes(block));
      this.#takenBytes += this.#bytes(block);
    }
    return blocks;
  }

  #start(source: Source, blocks: readonly Block[]): void {
    const { client, link } = source;
    const from = blocks[0]?.source ?? client;
    const { cache, shards, arena, fidelityOf, geometryOf, counters } = this.#options;
    const window = new Window({
      blocks,
      source: from,
      shards,
      arena,
      fidelity: blocks[0] === undefined ? 0 : fidelityOf(blocks[0].namespace),
      cache,
      geometryOf,
      onBytes: (count) => counters.add("bytes_fetched", count),
      mayFailOver: (block, reason) => this.#failOver(block, reason),
      onBadRecord: (key, error) => this.#report(from, blocks, key, error),
    });
    source.windows.add(window);
    const isFar = from !== client;
    link.down.begin(link.roundTripMs(0) ?? 0, isFar);
    this.#options.priority.begin();
    this.#busy.begin();
    void this.#run(source, window, blocks).then((isCut) => {
      source.windows.delete(window);
      source.pendingBytes -= this.#bytesOf(blocks);
      link.down.end(isCut, isFar);
      this.#options.priority.end();
      this.#busy.end();
      this.#pumpSoon();
    });
  }

  /** False for a block that failed over to another vault meanwhile. */
  #isWanted({ state, recordClass, owner }: Block, source: Source): boolean {
    return state === "wanted" && this.#sources[recordClass].get(owner) === source;
  }

  /** Queues a block that one vault did not give at the other vault that has it; false when it cannot. */
  #failOver(block: Block, reason: DoneReason): boolean {
    if (!FAIL_OVER_AFTER.has(reason) || this.#isClosed || !this.#options.cache.failOver(block))
      return false;
    this.#options.counters.add("blocks_failed_over");
    this.add(block);
    return true;
  }

  /** Fails over the blocks that still wait for a vault that brings nothing. */
  #turnWaiting(source: Source): void {
    for (const block of source.queue.all()) {
      if (this.#isWanted(block, source)) this.#failOver(block, "vault_down");
    }
  }

  #bytesOf(blocks: readonly Block[]): number {
    let sum = 0;
    for (const block of blocks) sum += this.#bytes(block);
    return sum;
  }

  /** Largest wire bytes of one block with all shards, cached per group. */
  #bytes({ group }: Block): number {
    let bytes = this.#blockBytes.get(group);
    if (bytes === undefined) {
      bytes = this.#options.blockBytes(group);
      this.#blockBytes.set(group, bytes);
    }
    return bytes;
  }

  /** Runs one call; true when it was given up or broke. Never rejects. */
  async #run(source: Source, window: Window, blocks: readonly Block[]): Promise<boolean> {
    const { client } = source;
    const { callMs, stallMs, counters, logger } = this.#options;
    try {
      const [first] = blocks;
      if (first === undefined) return false;
      const call = {
        deadlineMs: callMs,
        stallMs: Math.max(stallMs, first.user?.patienceMs ?? 0) + readMs(source),
        signal: window.signal,
      };
      await failpoint("sidecar.fetch.begun");
      const settled = await window.source.fetch(first.namespace, window.asked(), call);
      await failpoint("sidecar.fetch.placed");
      window.settle(settled);
      counters.add("fetches");
      this.#learnBytes(blocks, window.bytes);
      for (const block of blocks) if (block.state === "placed") block.noteHeld(client.epoch);
      window.finish("end_of_hit");
      return false;
    } catch (error) {
      const known = toTierkvError(error);
      const isStalled = known.code === "FETCH_STALLED";
      if (isStalled) counters.add("fetch_stalls");
      else if (!window.signal.aborted) counters.add("vault_errors");
      logger.debug({ err: known, vault: client.address }, "fetch failed");
      window.end("vault_down");
      if (isStalled || client.isDown) this.#turnWaiting(source);
      return true;
    }
  }

  /** Learns the real size of records, only from windows that brought all of theirs. */
  #learnBytes(blocks: readonly Block[], bytes: number): void {
    if (!blocks.every(({ state }) => state === "placed")) return;
    this.#options.rates.fetched(bytes, this.#bytesOf(blocks));
  }

  #report(source: BlockSource, blocks: readonly Block[], key: Buffer, error: TierkvError): void {
    const { counters, logger } = this.#options;
    counters.add("bad_records");
    logger.warn(
      { err: error, vault: source.address },
      "a record failed verification; reporting it to the vault",
    );
    const [first] = blocks;
    if (first === undefined) return;
    source
      .report(first.namespace, key, error.message, CALL_TIMEOUT_MS, first.run.tenant)
      .catch((failure: unknown) => logger.debug({ err: failure }, "the report did not arrive"));
  }
}

/** Milliseconds in which no byte may come, because the vault reads its archive for another window. */
function readMs({ client, windows, link: { farPace } }: Source): number {
  const isFar = [...windows].some((window) => window.source !== client);
  return isFar && farPace !== null ? Math.max(farPace.firstMs, farPace.nextMs) : 0;
}

/** Reasons that allow a failover: not an expired deadline, nor a lack of users. */
const FAIL_OVER_AFTER: ReadonlySet<DoneReason> = new Set([
  "vault_down",
  "end_of_hit",
  "bad_record",
]);
