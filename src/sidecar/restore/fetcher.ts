// Owns the fetching for one engine: wanted blocks in need order, cut into windows, a few in flight per vault, stalls noticed.
import type { RecordClass } from "../../block.ts";
import type { Vault } from "../../client/vault.ts";
import type { EngineRates } from "../../cost/engine-rates.ts";
import { Link } from "../../cost/link.ts";
import { toTierkvError } from "../../errors.ts";
import type { TierkvError } from "../../errors.ts";
import { failpoint } from "../../failpoint.ts";
import {
  CALL_TIMEOUT_MS,
  FETCH_WINDOW_BYTES,
  FETCH_WINDOW_KEYS,
  FETCHES_IN_FLIGHT_MAX,
} from "../../limits/general.ts";
import type { Logger } from "../../log.ts";
import type { SidecarCounters } from "../../metrics.ts";
import type { ArenaId } from "../../native.ts";
import { REBUILT } from "../../pool/placement.ts";
import { BusyTime, nowMs } from "../../time.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { Block } from "../slots/block.ts";
import type { DoneReason } from "../socket/messages.ts";
import type { FetchPriority } from "../vaults/fetch-priority.ts";
import type { Pools, VaultClients } from "../vaults/pools.ts";
import type { Links } from "../vaults/vaults.ts";
import { FetchQueue } from "./fetch-queue.ts";
import type { GroupRange } from "./plan.ts";
import { Rebuilder } from "./rebuilder.ts";
import { Window } from "./window.ts";

export interface FetcherOptions {
  cache: BlockCache;
  arena: ArenaId;
  shards: number;
  fidelity: number;
  vaults: VaultClients;
  pools: Pools;
  links: Links;
  rates: EngineRates;
  priority: FetchPriority;
  /** A call may take this long in all. */
  callMs: number;
  /** A call that brings nothing for this long is given up. */
  stallMs: number;
  geometryOf(group: number, shard: number): number;
  /** Wire bytes of one block with all shards, at most. */
  blockBytes(group: number): number;
  counters: SidecarCounters;
  logger: Logger;
}

/** Wanted blocks of one vault; those nobody wants any more are skipped when met. */
interface Lane {
  readonly client: Vault | Rebuilder;
  readonly link: Link;
  queue: FetchQueue;
  windows: Set<Window>;
  /** Largest wire bytes that wait or are on their way. */
  pendingBytes: number;
}

export class Fetcher {
  readonly #options: FetcherOptions;
  /** By class and vault; a vault that takes over an index gets another one. */
  readonly #lanes: Readonly<Record<RecordClass, Map<number, Lane>>> = {
    kv: new Map(),
    ssm: new Map(),
  };
  readonly #left = new Set<Lane>();
  readonly #blockBytes = new Map<number, number>();
  readonly #busy: BusyTime;
  readonly #rebuilder: Rebuilder;
  /** What it brings comes over the links of others. */
  readonly #ownLink = new Link();
  /** Of all blocks taken so far. */
  #takenBytes = 0;
  #isPumping = false;
  #isClosed = false;

  constructor(options: FetcherOptions) {
    this.#options = options;
    this.#busy = new BusyTime((us) => options.counters.add("fetch_busy_us", us));
    const { vaults, pools } = options;
    this.#rebuilder = new Rebuilder({ ...options, vaults: vaults.kv, pool: pools.kv });
  }

  get inFlight(): number {
    return this.#all.reduce((sum, { windows }) => sum + windows.size, 0);
  }

  /** Largest wire bytes of a vault that wait, until that turn, or are on their way. */
  pendingBytes(
    recordClass: RecordClass,
    vault: number,
    turn: number = Number.POSITIVE_INFINITY,
  ): number {
    const lanes = this.#lanes[recordClass];
    const until = (lane: Lane | undefined): number =>
      lane === undefined ? 0 : lane.pendingBytes - lane.queue.bytesAfter(turn);
    const [rebuilt, own] = [until(lanes.get(REBUILT)), until(lanes.get(vault))];
    return rebuilt === 0 ? own : own + rebuilt * this.#options.pools.kv.rebuildShare(vault);
  }

  get #all(): Lane[] {
    return [...this.#lanes.kv.values(), ...this.#lanes.ssm.values(), ...this.#left];
  }

  #laneOf({ recordClass, owner }: Block): Lane | undefined {
    const isRebuilt = owner === REBUILT;
    const client = isRebuilt ? this.#rebuilder : this.#options.vaults[recordClass][owner];
    const link = isRebuilt ? this.#ownLink : this.#options.links[recordClass][owner];
    const lanes = this.#lanes[recordClass];
    const known = lanes.get(owner);
    if (known?.client === client) return known;
    for (const gone of this.#left) if (gone.windows.size === 0) this.#left.delete(gone);
    if (known !== undefined) {
      // The one that had the index is closed: what waited for it will not come.
      for (const one of known.queue.all()) this.#options.cache.fail(one, "vault_down");
      known.queue = new FetchQueue();
      this.#left.add(known);
    }
    if (client === undefined || link === undefined) return undefined;
    const queue = new FetchQueue();
    const lane = { client, link, queue, windows: new Set<Window>(), pendingBytes: 0 };
    lanes.set(owner, lane);
    return lane;
  }

  /** Of a plan that begins now and wants so many blocks of each group: see FetchQueue. */
  turnOf(ranges: readonly GroupRange[]): number {
    const { blockBytes } = this.#options;
    return ranges.reduce(
      (sum, { group, keys }) => sum + keys.length * blockBytes(group),
      this.#takenBytes,
    );
  }

  /** Queues a wanted block behind those of its turn; by default it is the next. */
  add(block: Block, turn = 0): void {
    const lane = this.#laneOf(block);
    if (lane === undefined) {
      this.#options.cache.fail(block, "end_of_hit");
      return;
    }
    lane.queue.add(block, turn, this.#bytes(block));
    lane.pendingBytes += this.#bytes(block);
    // Plans that came and went while a call hung leave blocks behind that are gone.
    if (lane.queue.size > this.#options.cache.capacity * 2) {
      const before = this.#bytesOf(lane.queue.all());
      lane.queue.keep(
        (other) => this.#isWanted(other, lane),
        (left) => this.#bytesOf(left),
      );
      lane.pendingBytes -= before - this.#bytesOf(lane.queue.all());
    }
    this.#pumpSoon();
  }

  /** A block that is being fetched has no user any more. */
  dropUnwanted(block: Block): void {
    block.call?.dropUnwanted();
  }

  /** Gives everything up; no slot is written afterwards. */
  close(): void {
    this.#isClosed = true;
    for (const lane of this.#all) {
      const left = lane.queue.all();
      lane.pendingBytes -= this.#bytesOf(left);
      for (const block of left) this.#options.cache.fail(block, "deadline");
      lane.queue = new FetchQueue();
      for (const window of lane.windows) window.end("deadline");
    }
  }

  /** One turn of the loop later, so that a plan's blocks share windows. */
  #pumpSoon(): void {
    if (this.#isPumping) return;
    this.#isPumping = true;
    setImmediate(() => {
      this.#isPumping = false;
      if (this.#isClosed) return;
      for (const lane of this.#all) this.#pump(lane);
    });
  }

  #pump(lane: Lane): void {
    const batchBytes = this.#batchBytes(lane);
    while (lane.windows.size < FETCHES_IN_FLIGHT_MAX) {
      const blocks = this.#nextBlocks(lane, batchBytes);
      if (blocks.length === 0) return;
      this.#start(lane, blocks);
    }
  }

  /** What is rebuilt comes over all links, as much over each. */
  #batchBytes({ client, link }: Lane): number {
    if (client !== this.#rebuilder) return link.batchBytes("down", FETCH_WINDOW_BYTES);
    const { vaults, links } = this.#options;
    const up = links.kv.filter((_, vault) => vaults.kv[vault]?.isOpen === false);
    return Math.min(...up.map((way) => way.batchBytes("down", FETCH_WINDOW_BYTES)));
  }

  /** Takes the next blocks of one namespace and gives them slots; empty when nothing waits. */
  #nextBlocks(lane: Lane, batchBytes: number): readonly Block[] {
    const { cache } = this.#options;
    for (;;) {
      const blocks = this.#take(lane, batchBytes);
      const count = blocks.length === 0 ? 0 : cache.startFetch(blocks);
      if (count === blocks.length) return blocks;
      const left = blocks.slice(count);
      lane.pendingBytes -= this.#bytesOf(left);
      for (const block of left) cache.fail(block, "no_slot");
      if (count > 0) return blocks.slice(0, count);
    }
  }

  /** The next blocks of one namespace that are still wanted, as many as one call brings. */
  #take(lane: Lane, batchBytes: number): Block[] {
    const { shards, rates } = this.#options;
    const blocks: Block[] = [];
    let bytes = 0;
    for (let block = lane.queue.first; block !== undefined; block = lane.queue.first) {
      if (!this.#isWanted(block, lane)) {
        lane.pendingBytes -= this.#bytes(block);
        lane.queue.shift(this.#bytes(block));
        continue;
      }
      bytes += this.#bytes(block);
      const isFull =
        rates.wireBytes(bytes) > batchBytes ||
        (blocks.length + 1) * shards > FETCH_WINDOW_KEYS ||
        blocks[0]?.namespace.equals(block.namespace) === false;
      if (isFull && blocks.length > 0) return blocks;
      blocks.push(block);
      lane.queue.shift(this.#bytes(block));
      this.#takenBytes += this.#bytes(block);
    }
    return blocks;
  }

  #start(lane: Lane, blocks: readonly Block[]): void {
    const { client, link } = lane;
    const { cache, shards, arena, fidelity, geometryOf, counters } = this.#options;
    const window = new Window({
      blocks,
      shards,
      arena,
      fidelity,
      cache,
      geometryOf,
      onBytes: (count) => counters.add("bytes_fetched", count),
      mayFailOver: (block, reason) => this.#failOver(block, reason),
      onBadRecord: (key, error) => this.#report(client, blocks, key, error),
    });
    lane.windows.add(window);
    const isFar = blocks.some((block) => block.isFar);
    link.down.begin(link.questionMs(0) ?? 0, isFar);
    this.#options.priority.begin();
    this.#busy.begin();
    void this.#run(lane, window, blocks).then((isCut) => {
      lane.windows.delete(window);
      lane.pendingBytes -= this.#bytesOf(blocks);
      link.down.end(isCut, isFar);
      this.#options.priority.end();
      this.#busy.end();
      this.#pumpSoon();
    });
  }

  /** It may have failed over meanwhile. */
  #isWanted({ state, recordClass, owner }: Block, lane: Lane): boolean {
    return state === "wanted" && this.#lanes[recordClass].get(owner) === lane;
  }

  /** What one vault does not give is asked of the other that has it. */
  #failOver(block: Block, reason: DoneReason): boolean {
    if (!FAIL_OVER_AFTER.has(reason) || this.#isClosed || !this.#options.cache.failOver(block))
      return false;
    this.#options.counters.add("blocks_failed_over");
    this.add(block);
    return true;
  }

  /** So is what has not been asked of a vault that brings nothing. */
  #turnWaiting(lane: Lane): void {
    for (const block of lane.queue.all()) {
      if (this.#isWanted(block, lane)) this.#failOver(block, "vault_down");
    }
  }

  #bytesOf(blocks: readonly Block[]): number {
    let sum = 0;
    for (const block of blocks) sum += this.#bytes(block);
    return sum;
  }

  /** Of one block with all shards; what a group's are is asked once. */
  #bytes({ group }: Block): number {
    let bytes = this.#blockBytes.get(group);
    if (bytes === undefined) {
      bytes = this.#options.blockBytes(group);
      this.#blockBytes.set(group, bytes);
    }
    return bytes;
  }

  /** True when it was given up, or broke; never rejects. */
  async #run(lane: Lane, window: Window, blocks: readonly Block[]): Promise<boolean> {
    const { client } = lane;
    const { callMs, counters, logger } = this.#options;
    const stopWatch = this.#watch(lane, window);
    try {
      const [first] = blocks;
      if (first === undefined) return false;
      const onProgress = (): void => window.touch();
      const call = { deadlineMs: callMs, signal: window.signal, onProgress };
      await failpoint("sidecar.fetch.begun");
      const settled = await client.fetchInto(first.namespace, window.fetchPlan(), call, blocks);
      await failpoint("sidecar.fetch.placed");
      window.settle(settled);
      counters.add("fetches");
      if (client !== this.#rebuilder) this.#learnBytes(blocks, window.bytes);
      for (const block of blocks) if (block.state === "placed") block.noteHeld(client.epoch);
      window.finish("end_of_hit");
      return false;
    } catch (error) {
      if (!window.signal.aborted) {
        counters.add("vault_errors");
        logger.debug({ err: toTierkvError(error), vault: client.address }, "fetch failed");
      }
      window.end("vault_down");
      if (client.isOpen) this.#turnWaiting(lane);
      return true;
    } finally {
      stopWatch();
    }
  }

  /** How large records really are; only of windows that brought all of theirs. */
  #learnBytes(blocks: readonly Block[], bytes: number): void {
    if (!blocks.every(({ state }) => state === "placed")) return;
    this.#options.rates.fetched(bytes, this.#bytesOf(blocks));
  }

  #watch(lane: Lane, window: Window): () => void {
    const { stallMs, counters, logger } = this.#options;
    const check = (): void => {
      if (window.isOver || nowMs() - window.lastMs <= stallMs) return;
      counters.add("fetch_stalls");
      logger.debug({ stallMs }, "fetch given up: no byte came");
      window.end("vault_down");
      this.#turnWaiting(lane);
    };
    // After the next poll: when the loop itself was late, bytes may be waiting to be read.
    const timer = setInterval(() => setImmediate(check), Math.max(1, stallMs / 4));
    return () => clearInterval(timer);
  }

  #report(client: Lane["client"], blocks: readonly Block[], key: Buffer, error: TierkvError): void {
    const { counters, logger } = this.#options;
    counters.add("bad_records");
    logger.warn(
      { err: error, vault: client.address },
      "a record did not verify; the vault is told",
    );
    const [first] = blocks;
    if (first === undefined) return;
    client
      .report(first.namespace, key, error.message, CALL_TIMEOUT_MS)
      .catch((failure: unknown) => logger.debug({ err: failure }, "the report did not arrive"));
  }
}

/** Not where time is up, or nobody wants it. */
const FAIL_OVER_AFTER: ReadonlySet<DoneReason> = new Set([
  "vault_down",
  "end_of_hit",
  "bad_record",
]);
