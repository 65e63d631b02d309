// Owns what a sidecar does when a vault flushes: a held call per vault hears of it, every copy here goes, and the vault is told.
import { hostname } from "node:os";
import { className } from "../../block.ts";
import type { RecordClass } from "../../block.ts";
import type { FlushedScope, Takes } from "../../client/flush-feed.ts";
import type { Vault } from "../../client/vault.ts";
import { isTierkvError, toTierkvError } from "../../errors.ts";
import {
  FLUSH_LEAVE_MS,
  FLUSH_TIMEOUT_MS,
  WATCH_PAUSE_MS,
  WATCH_TIMEOUT_MS,
} from "../../limits/general.ts";
import type { Logger } from "../../log.ts";
import type { SidecarCounters } from "../../metrics.ts";
import { jitterMs, nowMs, randomId, sleep } from "../../time.ts";
import type { BlockOutcomes } from "../trace/block-outcomes.ts";
import type { VaultClients } from "./pools.ts";
import type { Quarantine } from "./quarantine.ts";

export interface FlushesOptions {
  vaults: VaultClients;
  /** For people: where this sidecar is found on its machine. */
  socket: string;
  /** Drops copies in arenas; `vault`: of what lies on one of the class's only. */
  dropCopies(
    recordClass: RecordClass,
    takes: Takes,
    vault: number | null,
  ): { blocks: number; bytes: number };
  /** Drops saves that wait; how many. */
  dropSaves(recordClass: RecordClass, takes: Takes, vault: number | null): number;
  /** Vaults that have left a pool are not told of its flushes: they are not to be asked any more. */
  forgetLeavers(recordClass: RecordClass): void;
  /** null: not known. */
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
  readonly #watches = new Map<Vault, Watch>();
  #isBegun = false;
  #heardMs: number | null = null;

  constructor(options: FlushesOptions) {
    this.#options = options;
    const { kv, ssm } = options.vaults;
    for (const client of [...kv, ...ssm]) this.add(client);
  }

  /** One may still be on its way to other vaults: what these hold is not to be offered to who was flushed. */
  get isUnderWay(): boolean {
    return this.#heardMs !== null && nowMs() - this.#heardMs < FLUSH_TIMEOUT_MS;
  }

  /** A vault more, and none that is not among the vaults any more. */
  add(client: Vault): void {
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

  /** There are copies to drop from now on: vaults are asked of flushes. Idempotent. */
  begin(): void {
    this.#isBegun = true;
    for (const watch of this.#watches.values()) watch.begin(this.#closing.signal);
  }

  /** Asks no more, and says so to the vaults. */
  async close(): Promise<void> {
    this.#closing.abort();
    await Promise.all([...this.#watches.values()].map((watch) => watch.leave()));
  }

  #open(client: Vault): Watch {
    const { socket, logger, vaults } = this.#options;
    const { name } = client;
    /** Its place among several of its class; null: it is alone. */
    const vault = (): number | null =>
      vaults[name].length > 1 ? vaults[name].indexOf(client) : null;
    const watch = new Watch(client, `${hostname()}:${socket} (${name})`, logger);
    let known: number | null = null;
    client.flushes.listen({
      onHello: (epoch) => {
        if (known !== null && known !== epoch) this.#options.outcomes.restarted(name);
        known = epoch;
      },
      // What one of several has forgotten says nothing of the others; a flush that is named was sent to all of them.
      onFlush: (scopes) => watch.drop(this.#flush(name, scopes, scopes === null ? vault() : null)),
    });
    return watch;
  }

  /** null: all. */
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
    // A flush of one tenant leaves what others stored under the name.
    if (vault === null && recordClass === CHECKED_CLASS)
      quarantine.lift((namespace) => takes(namespace, NOBODY));
    counters.add("flushes", concerned.length);
    counters.add("flushed_blocks", blocks);
    const dropped = { blocks, bytes, saves };
    logger.info({ class: recordClass, everything: scopes === null, ...dropped }, "flushed");
    return dropped;
  }
}

/** Engines compute blocks of attention again, no states. */
const CHECKED_CLASS = "kv";

/** As the tenant of a scope: those of all are meant, of requests without one, too. */
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

/** The held call to one vault. */
class Watch {
  readonly #client: Vault;
  readonly #id = randomId(16);
  readonly #name: string;
  readonly #logger: Logger;
  #unsaid: Dropped = { blocks: 0, bytes: 0, saves: 0 };
  #running: Promise<void> | null = null;
  readonly #ending = new AbortController();
  /** The vault knows this sidecar. */
  #isKnown = false;

  constructor(client: Vault, name: string, logger: Logger) {
    this.#client = client;
    this.#name = name;
    this.#logger = logger;
  }

  begin(signal: AbortSignal): void {
    this.#running ??= this.#run(AbortSignal.any([signal, this.#ending.signal]));
  }

  end(): void {
    this.#ending.abort();
  }

  /** To be said with the next call. */
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
      // A vault that holds no calls is not asked without a pause.
      const isHeld = nowMs() - startedMs > WATCH_PAUSE_MS;
      if (isAnswered && (isHeld || this.#client.flushes.number !== before)) continue;
      await sleep(jitterMs(WATCH_PAUSE_MS, 2 * WATCH_PAUSE_MS), signal).catch(() => {});
    }
  }

  /** False when it failed; never rejects. */
  async #call(timeoutMs: number, leaving: boolean, signal: AbortSignal): Promise<boolean> {
    const said = this.#unsaid;
    this.#unsaid = { blocks: 0, bytes: 0, saves: 0 };
    try {
      const request = { client: this.#id, name: this.#name, leaving, ...said };
      await this.#client.watch(request, timeoutMs, signal);
      this.#isKnown = true;
      return true;
    } catch (error) {
      this.drop(said);
      // Held calls end with the connection; whoever needs the vault says how it is.
      if (!isTierkvError(error) || !signal.aborted) {
        this.#logger.debug({ err: toTierkvError(error) }, "a vault was not heard of flushes");
      }
      return false;
    }
  }
}
