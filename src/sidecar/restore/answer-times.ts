// Owns how long an answer of a vault usually takes, and how long a request may wait for it.
import type { Link } from "../../cost/link.ts";
import { LOOKUP_LATE_SHARE_MAX } from "../../limits/cost.ts";

/** Milliseconds. */
export interface AnswerTimes {
  usualMs: number;
  mostMs: number;
}

/**
 * Nobody knows: all the time there is. Not asked for a while: it is asked again, for a small share of the time. Else an
 * answer may be late once in a while: giving up for every pause of this machine would lose what restores gain.
 */
export function answerTimes(link: Link | null, bytes: number, roomMs: number): AnswerTimes {
  const usualMs = link?.questionMs(bytes) ?? null;
  if (link === null || usualMs === null) return { usualMs: 0, mostMs: roomMs };
  if (link.isUnasked) return { usualMs: 0, mostMs: 0 };
  const lateMs = roomMs * LOOKUP_LATE_SHARE_MAX;
  return { usualMs, mostMs: Math.max(lateMs, link.questionMostMs(bytes) ?? 0) };
}
