// Owns the wait for blocks that another engine is saving: looked up until all are held, nothing new comes, or time is up.
import { countBits, HASH_BYTES } from "../../block.ts";
import {
  HANDOFF_POLL_FIRST_MS,
  HANDOFF_POLL_MAX_MS,
  HANDOFF_WAIT_SHARE,
} from "../../limits-cost.ts";
import { nowMs, sleep } from "../../time.ts";
import type { LookupAnswer, LookupGroup } from "./lookup.ts";

export interface Awaited {
  groups: readonly LookupGroup[];
  look(): Promise<LookupAnswer>;
  /** All is held that was handed over. */
  isWhole(answer: LookupAnswer): boolean;
  /** False once nobody waits for it. */
  isWanted(): boolean;
  /** In all; a share of it is left for the fetch. */
  waitMs: number;
  /** Without anything new. */
  stallMs: number;
}

/** The last answer; `isLate`: not all of it came, and what did may still be of use. */
export async function untilHandedOver(
  awaited: Awaited,
): Promise<{ answer: LookupAnswer; isLate: boolean }> {
  const { groups, look, isWhole, isWanted, waitMs, stallMs } = awaited;
  const startedMs = nowMs();
  let newsMs = startedMs;
  let most = 0;
  let pauseMs = HANDOFF_POLL_FIRST_MS;
  for (;;) {
    const answer = await look();
    if (isWhole(answer) || !isWanted()) return { answer, isLate: false };
    const held = heldOf(groups, answer);
    if (held > most) {
      most = held;
      newsMs = nowMs();
      pauseMs = HANDOFF_POLL_FIRST_MS;
    }
    const isStalled = nowMs() - newsMs >= stallMs;
    if (isStalled || nowMs() - startedMs >= waitMs * HANDOFF_WAIT_SHARE) {
      return { answer, isLate: true };
    }
    await sleep(pauseMs);
    pauseMs = Math.min(pauseMs * 2, HANDOFF_POLL_MAX_MS);
  }
}

function heldOf(groups: readonly LookupGroup[], { held }: LookupAnswer): number {
  return held.reduce((sum, bits, at) => {
    return sum + countBits(bits, (groups[at]?.hashes.length ?? 0) / HASH_BYTES);
  }, 0);
}
