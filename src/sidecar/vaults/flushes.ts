// Owns the sidecar's part in flushes: a held call per vault reports them, every copy here is dropped, and the vault is answered.
import { hostname } from "node:os";
import { className } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import { isTierkvError, toTierkvError } from "../../base/errors.ts";
import {
  FLUSH_LEAVE_MS,
  FLUSH_TIMEOUT_MS,
  STATUS_TIMEOUT_MS,
  WATCH_PAUSE_MS,
  WATCH_TIMEOUT_MS,
} from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import { jitterMs, nowMs, randomId, sleep } from "../../base/time.ts";
import type { FlushedScope, Takes } from "../../client/flush-feed.ts";
import type { BlockStore } from "../../client/source.ts";
import type { BlockOutcomes } from "../trace/block-outcomes.ts";
import type { VaultClients } from "./pools.ts";
import type { Quarantine } from "./quarantine.ts";

export interface FlushesOptions {
  vaults: VaultClients;
  /** Socket path of this sidecar, shown to people. */
  socket: string;
  /** Drops copies in arenas; `vault`: only of blocks on that vault of the class. */
  dropCopies(
    recordClass: RecordClass,
    takes: Takes,
    vault: number | null,
  ): { blocks: number; bytes: number };
  /** Drops waiting saves, and returns how many. */
  dropSaves(recordClass: RecordClass, takes: Takes, vault: number | null): number;
  /** Called at a flush, because vaults that have left the pool do not hear of it and must not be asked any more. */
  forgetLeavers(recordClass: RecordClass): void;
  /** Returns null when the model is not known. */
  modelOf(recordClass: RecordClass, namespace: Buffer): string | null;
  outcomes: BlockOutcomes;
  quarantine: Quarantine;
  counters: SidecarCounters;
  logger: Logger;
}

interface Dropped {
  blocks: number;
  bytes: number;
  saves: number;
}

export class Flushes {
  readonly #options: FlushesOptions;
  readonly #closing = new AbortController();
  readonly #watches = new Map<BlockStore, Watch>();
  #isBegun = false;
  #heardMs: number | null = null;

  constructor(options: FlushesOptions) {
    this.#options = options;
    const { kv, ssm } = options.vaults;
    for (const client of [...kv, ...ssm]) this.add(client);
  }

  /** True while a flush may still be on its way to other vaults, whose blocks must not be re-offered to a flushed one. */
  get isUnderWay(): boolean {
    return this.#heardMs !== null && nowMs() - this.#heardMs < FLUSH_TIMEOUT_MS;
  }

  /** Watches another vault, and ends the watches of vaults that are gone. */
  add(client: BlockStore): void {
    const { kv, ssm } = this.#options.vaults;
    for (const [known, watch] of this.#watches) {
      if (kv.includes(known) || ssm.includes(known)) continue;
      watch.end();
      this.#watches.delete(known);
    }
    const watch = this.#open(client);
    this.#watches.set(client, watch);
    if (this.#isBegun) watch.begin(this.#closing.signal);
  }

  /** Begins to watch the vaults, because there are copies to drop from now on. Idempotent. */
  begin(): void {
    this.#isBegun = true;
    for (const watch of this.#watches.values()) watch.begin(this.#closing.signal);
  }

  /** Ends the watches, and tells the vaults. */
  async close(): Promise<void> {
    this.#closing.abort();
    await Promise.all([...this.#watches.values()].map((watch) => watch.leave()));
  }

  #open(client: BlockStore): Watch {
    const { socket, logger, vaults } = this.#options;
    const { name } = client;
    /** Index among several vaults of the class; null: it is alone. */
    const vault = (): number | null =>
      vaults[name].length > 1 ? vaults[name].indexOf(client) : null;
    const watch = new Watch(client, `${hostname()}:${socket} (${name})`, logger);
    let known: number | null = null;
    client.flushes.listen({
      onHello: (epoch) => {
        if (known !== null && known !== epoch) this.#options.outcomes.restarted(name);
        known = epoch;
      },
      // A vault's lost history concerns that vault only; a named flush was sent to all of its class.
      onFlush: (scopes) => watch.drop(this.#flush(name, scopes, scopes === null ? vault() : null)),
    });
    return watch;
  }

  /** Drops the copies and saves of the named scopes; null: everything. */
  #flush(
    recordClass: RecordClass,
    scopes: readonly FlushedScope[] | null,
    vault: number | null,
  ): Dropped {
    const { dropCopies, dropSaves, modelOf, outcomes, quarantine, counters, logger } =
      this.#options;
    const concerned = (scopes ?? [EVERYTHING]).filter(
      (scope) => scope.recordClass === 0 || className(scope.recordClass) === recordClass,
    );
    if (concerned.length === 0) return { blocks: 0, bytes: 0, saves: 0 };
    if (scopes !== null) {
      this.#heardMs = nowMs();
      this.#options.forgetLeavers(recordClass);
    }
    const takes = takesOf(concerned, (namespace) => modelOf(recordClass, namespace));
    const { blocks, bytes } = dropCopies(recordClass, takes, vault);
    const saves = dropSaves(recordClass, takes, vault);
    if (vault === null) outcomes.flushed(recordClass, takes);
    // A flush of one tenant leaves other tenants' blocks in the namespace, so the quarantine stays.
    if (vault === null && recordClass === CHECKED_CLASS)
      quarantine.lift((namespace) => takes(namespace, NOBODY));
    counters.add("flushes", concerned.length);
    counters.add("flushed_blocks", blocks);
    const dropped = { blocks, bytes, saves };
    // A sidecar hears of earlier flushes whenever it meets a vault; one that drops nothing here is no news.
    const level = blocks + saves > 0 ? "info" : "debug";
    logger[level]({ class: recordClass, everything: scopes === null, ...dropped }, "flushed");
    return dropped;
  }
}

/** Engines check blocks of attention by computing them again, but no states. */
const CHECKED_CLASS = "kv";

/** Tenant of a scope that means all tenants, and requests without one. */
const NOBODY = 0;

const EVERYTHING: FlushedScope = {
  number: 0,
  everyNamespace: true,
  namespaces: [],
  recordClass: 0,
  model: "",
  tenant: NOBODY,
};

function takesOf(
  scopes: readonly FlushedScope[],
  modelOf: (namespace: Buffer) => string | null,
): Takes {
  const named = scopes.map(({ everyNamespace, namespaces, model, tenant }) => {
    const names = new Set(namespaces.map((namespace) => namespace.toString("latin1")));
    const isNamed = (namespace: Buffer): boolean =>
      everyNamespace ||
      names.has(namespace.toString("latin1")) ||
      (model !== "" && modelOf(namespace) === model);
    return { isNamed, tenant };
  });
  return (namespace, tenant) =>
    named.some(
      (scope) => (scope.tenant === NOBODY || scope.tenant === tenant) && scope.isNamed(namespace),
    );
}

/** A call to one vault that the vault holds until a flush. */
class Watch {
  readonly #client: BlockStore;
  readonly #id = randomId(16);
  readonly #name: string;
  readonly #logger: Logger;
  #unsaid: Dropped = { blocks: 0, bytes: 0, saves: 0 };
  #running: Promise<void> | null = null;
  readonly #ending = new AbortController();
  /** True once the vault knows this sidecar. */
  #isKnown = false;

  constructor(client: BlockStore, name: string, logger: Logger) {
    this.#client = client;
    this.#name = name;
    this.#logger = logger;
  }

  begin(signal: AbortSignal): void {
    if (this.#client.watch === undefined) return;
    this.#running ??= this.#run(AbortSignal.any([signal, this.#ending.signal]));
  }

  end(): void {
    this.#ending.abort();
  }

  /** Adds to the counts that the next call reports. */
  drop({ blocks, bytes, saves }: Dropped): void {
    this.#unsaid.blocks += blocks;
    this.#unsaid.bytes += bytes;
    this.#unsaid.saves += saves;
  }

  async leave(): Promise<void> {
    await this.#running;
    if (this.#isKnown) await this.#call(FLUSH_LEAVE_MS, true, new AbortController().signal);
  }

  async #run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const [startedMs, before] = [nowMs(), this.#client.flushes.number];
      const isAnswered = await this.#call(WATCH_TIMEOUT_MS, false, signal);
      // Pauses for a vault that does not hold calls.
      const isHeld = nowMs() - startedMs > WATCH_PAUSE_MS;
      if (isAnswered && (isHeld || this.#client.flushes.number !== before)) continue;
      await this.#pause(signal);
      if (!isAnswered) await this.#judge(signal);
    }
  }

  /** Asks the vault until it answers or counts as down, so that its state is right where no engine asks. Never rejects. */
  async #judge(signal: AbortSignal): Promise<void> {
    while (!signal.aborted && !this.#client.isDown) {
      const asked = this.#client.stats?.(STATUS_TIMEOUT_MS);
      if (asked === undefined || (await asked.catch(() => null)) !== null) return;
      await this.#pause(signal);
    }
  }

  async #pause(signal: AbortSignal): Promise<void> {
    await sleep(jitterMs(WATCH_PAUSE_MS, 2 * WATCH_PAUSE_MS), signal).catch(() => {});
  }

  /** Makes one call; false when it failed. Never rejects. */
  async #call(timeoutMs: number, leaving: boolean, signal: AbortSignal): Promise<boolean> {
    const said = this.#unsaid;
    this.#unsaid = { blocks: 0, bytes: 0, saves: 0 };
    try {
      const request = { client: this.#id, name: this.#name, leaving, ...said };
      await this.#client.watch?.(request, timeoutMs, signal);
      this.#isKnown = true;
      return true;
    } catch (error) {
      this.drop(said);
      // Held calls end with the connection, and other callers report the vault's state.
      if (!isTierkvError(error) || !signal.aborted) {
        this.#logger.debug({ err: toTierkvError(error) }, "the call that waits for flushes failed");
      }
      return false;
    }
  }
}
