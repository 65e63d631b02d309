// Owns the rebuilding of blocks that no vault gives: the stripe's other records and its parity are fetched, and combined in the core.
import { HASH_BYTES, hashAt, ItemStatus, packKeys, PARITY_GROUP } from "../../block.ts";
import type { BlockStore, FetchOptions, FetchWindow, Settled } from "../../client/source.ts";
import { toTierkvError } from "../../errors.ts";
import { CALL_TIMEOUT_MS } from "../../limits/general.ts";
import type { Logger } from "../../log.ts";
import type { SidecarCounters } from "../../metrics.ts";
import { outboxDrop, outboxReserve, parityRebuild } from "../../native.ts";
import { anchorOf } from "../../pool/placement.ts";
import type { Block } from "../slots/block.ts";
import type { Kin, Pool } from "../vaults/pools.ts";

export interface RebuilderOptions {
  /** Vaults of class kv. */
  vaults: readonly BlockStore[];
  pool: Pick<Pool, "kinOf" | "width">;
  counters: SidecarCounters;
  logger: Logger;
}

/** One needed record: its vault, its key, and its id in the native outbox. */
interface Part {
  vault: number;
  key: Buffer;
  id: number;
}

/** A source of blocks that a fetcher uses like a vault. */
export class Rebuilder {
  readonly epoch = 0;
  readonly isDown = false;
  readonly address = "parity";
  readonly #options: RebuilderOptions;

  constructor(options: RebuilderOptions) {
    this.#options = options;
  }

  /** Rebuilds blocks into their slots. ACCEPTED: rebuilt, verified and decoded; everything else is MISSING. */
  async fetch(
    namespace: Buffer,
    plan: FetchWindow,
    { deadlineMs, signal }: FetchOptions,
    blocks: readonly Block[],
  ): Promise<Settled> {
    const { counters, pool } = this.#options;
    const shards = plan.geometries.length / Math.max(1, blocks.length);
    const width = Math.max(2, pool.width);
    const items = blocks.flatMap((block) => this.#partsOf(block, shards));
    const parts = items.flatMap((of) => of ?? []);
    const ids = [...outboxReserve(parts.length)];
    for (const [at, part] of parts.entries()) part.id = ids[at] ?? 0;
    let bytes = 0;
    try {
      const here = new Set<number>();
      const ask = async (vault: number): Promise<void> => {
        const of = parts.filter((part) => part.vault === vault);
        bytes += await this.#collect(vault, namespace, of, deadlineMs, here);
      };
      await Promise.all([...new Set(parts.map(({ vault }) => vault))].map(ask));
      signal?.throwIfAborted();
      const named = items.flatMap(
        (of) => of?.map(({ id }) => (here.has(id) ? id : 0)) ?? Array<number>(width).fill(0),
      );
      const { arena, fidelity, keys, geometries, leases } = plan;
      const records = Uint32Array.from(named);
      const statuses = await parityRebuild(
        ...([arena, fidelity, namespace, keys, geometries, leases, records, width] as const),
      );
      const isWhole = (at: number): boolean =>
        statuses
          .subarray(at * shards, (at + 1) * shards)
          .every((status) => status === ItemStatus.ACCEPTED);
      const rebuilt = [...blocks.keys()].filter(isWhole).length;
      counters.add("blocks_rebuilt", rebuilt);
      counters.add("rebuilds_failed", blocks.length - rebuilt);
      return { statuses, bytes, reason: null };
    } finally {
      for (const id of ids) outboxDrop(id);
    }
  }

  /** Reports nothing, because a failed rebuild does not show which record is wrong. */
  report(): Promise<void> {
    return Promise.resolve();
  }

  /** Returns, per shard, the parity record and then the others; null: there are none. */
  #partsOf(block: Block, shards: number): (Part[] | null)[] {
    const { stripes, first } = block.run;
    const kin = this.#kinOf(block);
    return Array.from({ length: shards }, (_none, shard) => {
      if (kin === null || stripes === undefined || stripes === null) return null;
      const keyOf = (at: number, group: number): Buffer =>
        packKeys(hashAt(stripes, at - stripes.first), group, shard);
      const last = keyOf(kin.last, block.group | PARITY_GROUP);
      const others = kin.others.map(({ at, vault }) => ({ vault, key: keyOf(at, block.group) }));
      return [{ vault: kin.vault, key: last }, ...others].map((part) => ({ ...part, id: first }));
    });
  }

  #kinOf({ run: { stripes }, at }: Block): Kin | null {
    if (stripes === undefined || stripes === null) return null;
    const { first, hashes } = stripes;
    return this.#options.pool.kinOf(hashes.subarray((anchorOf(at) - first) * HASH_BYTES), at);
  }

  /** Fetches records of one vault, adds the ids that came to `here`, and returns their bytes. Never rejects. */
  async #collect(
    vault: number,
    namespace: Buffer,
    parts: readonly Part[],
    deadlineMs: number,
    here: Set<number>,
  ): Promise<number> {
    const { vaults, counters, logger } = this.#options;
    const client = vaults[vault];
    if (client?.collect === undefined) return 0;
    try {
      const keys = Buffer.concat(parts.map(({ key }) => key));
      const ids = parts.map(({ id }) => id);
      const { statuses, bytes, reason } = await client.collect(namespace, keys, ids, deadlineMs);
      for (const [at, { id, key }] of parts.entries()) {
        if (statuses[at] === ItemStatus.ACCEPTED) here.add(id);
        if (statuses[at] !== ItemStatus.BAD_RECORD) continue;
        counters.add("bad_records");
        // Sound records do not wait for it.
        client
          .report(namespace, key, reason ?? "the record is damaged", CALL_TIMEOUT_MS)
          .catch((error: unknown) => logger.debug({ err: error }, "the report did not arrive"));
      }
      return bytes;
    } catch (error) {
      counters.add("vault_errors");
      logger.debug({ err: toTierkvError(error), vault: client.address }, "parity: fetch failed");
      return 0;
    }
  }
}
