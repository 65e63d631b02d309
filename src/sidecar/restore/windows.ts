// Owns restores whose blocks the engine loads while others come: which plans, when it is told, and the blocks in use at a time.
import type { Namespace } from "../../base/block.ts";
import { WINDOW_ARENA_SHARE, WINDOW_BLOCKS_MAX } from "../../base/limits/cost.ts";
import type { Block } from "../slots/block.ts";
import type { Prefetch } from "../socket/messages.ts";
import type { ArenaContext } from "./arena-context.ts";
import type { GroupShape } from "./boundary.ts";
import { copiedRuns } from "./copied-run.ts";
import type { GroupRange, Plan, Run } from "./plan.ts";

/** True for models whose restores are of use up to any block, so that a load may end early. */
export function endsAnywhere(shapes: readonly Pick<GroupShape, "tail">[]): boolean {
  return shapes.length === 1 && shapes[0]?.tail === 0;
}

/** True for a plan whose blocks the engine may load as they come. A receipt needs all of them in the arena at the end. */
export function isLoadable(
  { isHandedOver, receipt }: Plan,
  { groups }: Pick<Prefetch, "groups">,
  shapeOf: (group: number) => GroupShape,
): boolean {
  return !isHandedOver && receipt === "" && endsAnywhere(groups.map(({ group }) => shapeOf(group)));
}

/** Returns how many blocks a plan may restore: any number where they may pass through the arena. */
export function capacityOf(
  { isLoadable: isAny }: Plan,
  { cache }: Pick<ArenaContext, "cache">,
): number {
  return isAny ? Number.POSITIVE_INFINITY : cache.capacityInTime;
}

/** Returns how many blocks of a plan are in use at a time; null: all, because the arena holds them. */
export function depthOf(
  { isLoadable: isAny, ranges }: Plan,
  { cache: { capacityInTime } }: Pick<ArenaContext, "cache">,
): number | null {
  const blocks = ranges.reduce((sum, { count }) => sum + count, 0);
  if (!isAny || blocks <= capacityInTime) return null;
  return Math.max(1, Math.min(WINDOW_BLOCKS_MAX, Math.floor(capacityInTime * WINDOW_ARENA_SHARE)));
}

/** True once the engine may be told to load what is placed: its blocks are held until the rest has come. */
export function mayLoad(plan: Plan, context: Pick<ArenaContext, "costs"> | null): boolean {
  if (!plan.isLoadable || plan.isLoading || context === null) return false;
  if (!plan.runs.some(({ placed }) => placed > 0)) return false;
  return plan.depth !== null || context.costs.isNearlyHere(plan);
}

/** Takes the blocks of a plan with a depth into use, as earlier ones leave the arena. */
export class Feed {
  readonly #depth: number;
  readonly #run: Run;
  readonly #blocks: Generator<Block>;

  constructor(
    namespace: Namespace,
    { depth, turn }: Plan,
    range: GroupRange,
    run: Run,
    context: Pick<ArenaContext, "cache" | "fetcher">,
  ) {
    this.#depth = depth ?? range.count;
    this.#run = run;
    this.#blocks = blocksOf(namespace, turn, range, run, context);
    run.expect(range.count);
  }

  /** Takes the next blocks. Few at a time would make small calls, so a quarter of the depth is awaited. */
  fill(): void {
    const free = this.#depth - this.#run.inUse;
    if (this.#run.isComplete || (free * 4 < this.#depth && this.#run.inUse > 0)) return;
    while (this.#run.inUse < this.#depth && this.#blocks.next().done !== true);
  }
}

/** Yields the blocks of a range, each taken into use and, where nobody has, requested. */
function* blocksOf(
  namespace: Namespace,
  turn: number,
  range: GroupRange,
  run: Run,
  { cache, fetcher }: Pick<ArenaContext, "cache" | "fetcher">,
): Generator<Block> {
  for (const { run: copied, at, count } of copiedRuns(namespace, range)) {
    for (let index = 0; index < count; index += 1) {
      const block = cache.use(range.keyOf(at + index), copied, index, run);
      run.add(block);
      if (block.state === "wanted" && block.userCount === 1) fetcher.add(block, turn);
      yield block;
    }
  }
}
