// Owns the wait for blocks that another engine is saving: look-ups and early fetches until all are held, progress stops, or time is up.
import { countBits, HASH_BYTES } from "../../base/block.ts";
import {
  HANDOFF_POLL_FIRST_MS,
  HANDOFF_POLL_MAX_MS,
  HANDOFF_ROOM_SHARE,
  HANDOFF_WAIT_SHARE,
} from "../../base/limits/cost.ts";
import { KEYS_PER_SLICE } from "../../base/limits/general.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import { nowMs, sleep, yieldToLoop } from "../../base/time.ts";
import type { Block } from "../slots/block.ts";
import type { Prefetch } from "../socket/messages.ts";
import type { ArenaContext } from "./arena-context.ts";
import { askedOf, chooseBoundary } from "./boundary.ts";
import { copiedRuns } from "./copied-run.ts";
import type { LookupAnswer, LookupGroup } from "./lookup-answer.ts";
import { Run } from "./plan.ts";
import type { GroupRange, Plan } from "./plan.ts";
import type { Recut } from "./recut.ts";

export interface Awaited {
  plan: Plan;
  message: Prefetch;
  context: ArenaContext;
  look(): Promise<LookupAnswer>;
  /** Longest wait in milliseconds; a share of it is left for the fetch. */
  waitMs: number;
  /** Longest wait without a new block, in milliseconds. */
  stallMs: number;
  /** Fetches and cuts longer blocks; null: the other engine's are as long as these. */
  recut: Recut | null;
  counters: SidecarCounters;
}

/** Returns the last answer. After a time-out, a part of the blocks may still be of use. */
export async function untilHandedOver(awaited: Awaited): Promise<LookupAnswer> {
  const { plan, message, context, look, recut, waitMs, stallMs, counters } = awaited;
  const asked = askedOf(message, context.shapeOf);
  const whole = Math.min(message.handoff, plan.span.end);
  const startedMs = nowMs();
  const over = (answer: LookupAnswer, isLate: boolean): LookupAnswer => {
    counters.add("handoffs");
    counters.add("handoffs_late", isLate ? 1 : 0);
    counters.add("handoff_wait_us", Math.round((nowMs() - startedMs) * 1000));
    return answer;
  };
  let newsMs = startedMs;
  let most = 0;
  let pauseMs = HANDOFF_POLL_FIRST_MS;
  for (;;) {
    await recut?.step();
    const answer = await look();
    const boundary = chooseBoundary(asked, answer, context.cache.capacityInTime);
    if (boundary.heldTokens >= whole || plan.isOver) return over(answer, false);
    const held = heldOf(message.groups, answer);
    if (held > most) {
      most = held;
      newsMs = nowMs();
      pauseMs = HANDOFF_POLL_FIRST_MS;
      counters.add("handoff_blocks_early", await fetchEarly(plan, boundary.ranges, context));
    }
    const isStalled = nowMs() - newsMs >= stallMs || recut?.isSpent === true;
    if (isStalled || nowMs() - startedMs >= waitMs * HANDOFF_WAIT_SHARE) return over(answer, true);
    await sleep(pauseMs);
    pauseMs = Math.min(pauseMs * 2, HANDOFF_POLL_MAX_MS);
  }
}

/** Fetches blocks that every deeper boundary needs, so no states or windows. Returns how many were begun. */
async function fetchEarly(
  plan: Plan,
  ranges: readonly GroupRange[],
  { cache, fetcher, shapeOf }: ArenaContext,
): Promise<number> {
  const turn = fetcher.turnOf(ranges);
  // The end of this hand-off is not known, so a share of the arena stays free for other plans.
  let room = Math.floor(cache.room - cache.capacity * HANDOFF_ROOM_SHARE);
  let begun = 0;
  for (const range of ranges) {
    if (shapeOf(range.group).tail > 0 || room <= 0) continue;
    const run = earlyRun(plan, range, cache);
    for (const block of earlyBlocks(plan, range, run, cache)) {
      const isFirst = block.userCount === 1;
      if (isFirst) room -= 1;
      if (isFirst && block.state === "wanted") {
        fetcher.add(block, turn);
        begun += 1;
      }
      if (room <= 0) return begun;
      if (run.length % KEYS_PER_SLICE === 0) await yieldToLoop();
      if (plan.isOver) return begun;
    }
  }
  return begun;
}

/** Yields the blocks of the range behind the run's last one, each taken into use. */
function* earlyBlocks(
  { namespace }: Plan,
  range: GroupRange,
  run: Run,
  cache: ArenaContext["cache"],
): Generator<Block> {
  if (namespace === null) return;
  for (const { run: copied, at, count } of copiedRuns(namespace, range, run.length)) {
    for (let index = 0; index < count; index += 1) {
      const block = cache.use(range.keyOf(at + index), copied, index, run);
      run.add(block);
      yield block;
    }
  }
}

function earlyRun(plan: Plan, range: GroupRange, cache: ArenaContext["cache"]): Run {
  const known = plan.early.find(({ group }) => group === range.group);
  if (known !== undefined) return known;
  const run = new Run(range, cache, () => undefined, plan);
  plan.early.push(run);
  return run;
}

function heldOf(groups: readonly LookupGroup[], answer: LookupAnswer): number {
  return answer.groups.reduce((sum, { held }, at) => {
    return sum + countBits(held, (groups[at]?.hashes.length ?? 0) / HASH_BYTES);
  }, 0);
}
