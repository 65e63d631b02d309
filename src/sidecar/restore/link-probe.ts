// Owns the probe of a link without a recent measurement: a few blocks of a request that computes instead are fetched.
import type { Namespace } from "../../base/block.ts";
import { LINK_BATCH_BYTES_MIN } from "../../base/limits/cost.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { Block, BlockUser } from "../slots/block.ts";
import type { ArenaContext } from "./arena-context.ts";
import { copiedRuns } from "./copied-run.ts";
import type { GroupRange } from "./plan.ts";

/** Uses blocks until they are placed or have failed. */
class Probe implements BlockUser {
  readonly #cache: BlockCache;
  readonly #blocks = new Set<Block>();

  constructor(cache: BlockCache) {
    this.#cache = cache;
  }

  add(block: Block): void {
    this.#blocks.add(block);
  }

  onBlock(): void {
    for (const block of this.#blocks) {
      if (block.state === "wanted" || block.state === "fetching") continue;
      this.#blocks.delete(block);
      this.#cache.leave(block, this);
    }
  }
}

/** Probes while no plan waits and without taking room from plans; the blocks stay for the next request. */
export function probeLink(
  context: ArenaContext,
  namespace: Namespace,
  ranges: readonly GroupRange[],
): void {
  const probe = new Probe(context.cache);
  for (const range of ranges) {
    const { recordClass } = range;
    for (const vault of new Set(range.offers.map((offer) => offer.vault))) {
      const { costs, fetcher } = context;
      if (!costs.isStale(recordClass, vault)) continue;
      if (fetcher.pendingBytes(recordClass, vault) > 0) continue;
      probeVault(context, namespace, range, vault, probe);
    }
  }
}

function probeVault(
  { cache, fetcher, sourceBytes }: ArenaContext,
  namespace: Namespace,
  range: GroupRange,
  vault: number,
  probe: Probe,
): void {
  let bytes = 0;
  const offers = range.offers.filter((offer) => offer.vault === vault);
  for (const { run, at, count } of copiedRuns(namespace, { ...range, offers })) {
    for (let index = 0; index < count; index += 1) {
      if (bytes >= LINK_BATCH_BYTES_MIN || cache.room <= 0) return;
      const key = range.keyOf(at + index);
      if (cache.isPlaced(key) || cache.isInUse(key)) continue;
      const block = cache.use(key, run, index, probe);
      probe.add(block);
      fetcher.add(block);
      bytes += sourceBytes(range.group);
    }
  }
}
