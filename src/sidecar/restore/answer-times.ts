// Owns a look-up's time budget: how long a vault's answer usually takes, and how long a request may wait for it.
import { LOOKUP_LATE_SHARE_MAX } from "../../base/limits/cost.ts";
import type { Link } from "../../cost/link.ts";

/** Usual and longest time of an answer, in milliseconds. */
export interface AnswerTimes {
  usualMs: number;
  mostMs: number;
}

/**
 * Without a round-trip sample the whole budget is allowed; with a stale one, only the caller's small share. Otherwise an answer may
 * be late once in a while, because giving up at every pause of this machine would cost more than restores gain.
 */
export function answerTimes(link: Link | null, bytes: number, roomMs: number): AnswerTimes {
  const usualMs = link?.roundTripMs(bytes) ?? null;
  if (link === null || usualMs === null) return { usualMs: 0, mostMs: roomMs };
  if (link.isUnasked) return { usualMs: 0, mostMs: 0 };
  const lateMs = roomMs * LOOKUP_LATE_SHARE_MAX;
  return { usualMs, mostMs: Math.max(lateMs, link.roundTripMaxMs(bytes) ?? 0) };
}
