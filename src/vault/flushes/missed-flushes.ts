// Owns the flushes of the pool that this vault missed: found in the pool's list, and carried out before anybody is served.
import { toTierkvError } from "../../base/errors.ts";
import { LISTED_FLUSHES_MAX } from "../../base/limits/pool.ts";
import type { Logger } from "../../base/log.ts";
import type { FlushEntry } from "../../discovery/entry.ts";
import type { Gossip } from "../../discovery/gossip.ts";
import type { FlushLog, FlushScope } from "./flush-log.ts";

export interface MissedFlushesOptions {
  /** null: no pool tells of flushes. */
  pool: Gossip | null;
  flushes: FlushLog;
  /** Whether the vault has no record that a flush could take. */
  isEmpty(): boolean;
  namespacesOf(model: string): string[];
  /** Drops the records of a scope. */
  flush(scope: FlushScope): Promise<void>;
  logger: Logger;
}

const EVERYTHING: FlushScope = { namespaces: null, recordClass: 0, model: "", tenant: 0 };

export class MissedFlushes {
  readonly #options: MissedFlushesOptions;
  #running: Promise<void> = Promise.resolve();
  #isServing = false;

  constructor(options: MissedFlushesOptions) {
    this.#options = options;
  }

  /** Asks the pool, and carries out what this vault missed while it was away; later news is carried out as it comes. */
  async begin(): Promise<void> {
    const { pool } = this.#options;
    await pool?.catchUp();
    await this.carryOut();
    this.#isServing = true;
    pool?.listen(() => void this.carryOut());
  }

  /** Resolves when all that the list has is carried out, or has failed. Never rejects. */
  carryOut(): Promise<void> {
    this.#running = this.#running.then(() => this.#carryOut());
    return this.#running;
  }

  async #carryOut(): Promise<void> {
    const { pool, flushes, isEmpty, logger } = this.#options;
    const listed = pool?.book.flushes ?? [];
    const missed = listed.filter(({ id }) => !flushes.hasOfPool(id));
    if (missed.length === 0) return;
    const all = listed.map(({ id }) => id);
    if (!this.#isServing && isEmpty()) {
      flushes.noteOfPool(all, all);
      return;
    }
    // The list has no flush that is known here, so that earlier ones may have left it.
    const isCut = listed.length >= LISTED_FLUSHES_MAX && missed.length === listed.length;
    try {
      if (isCut) await this.#options.flush(EVERYTHING);
      for (const entry of missed) {
        if (!isCut) await this.#options.flush(this.#scopeOf(entry));
        flushes.noteOfPool([entry.id], all);
      }
      logger.info({ flushes: missed.length, everything: isCut }, "missed flushes were carried out");
    } catch (error) {
      logger.error({ err: toTierkvError(error) }, "a flush of the pool was not carried out");
    }
  }

  #scopeOf({ namespace, recordClass, model, tenant }: FlushEntry): FlushScope {
    const { namespacesOf } = this.#options;
    const named = namespace === null ? null : [namespace];
    return {
      namespaces: model === "" ? named : namespacesOf(model),
      recordClass,
      model,
      tenant,
    };
  }
}
