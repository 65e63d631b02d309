// Owns the phases that the lanes of one client go through, and what is known in each.
import type { LaneRail, LanesId } from "../native.ts";

/** none: not tried yet, or not wanted · opening · up · broken: will be tried again. */
export type LanesState = "none" | "opening" | "up" | "broken";

/** There are no connections; `reason`: why. */
export interface Down {
  readonly kind: "none" | "broken" | "closed";
  readonly reason: string;
}

/** Connections under a native id, and the ways that they are spread over. */
interface Opening {
  readonly kind: "opening";
  readonly id: LanesId;
  readonly rails: readonly LaneRail[];
  /** What they were before: an attempt that follows a break waits longer after the next one. */
  readonly after: Down;
}

interface Up extends Pick<Opening, "id" | "rails"> {
  readonly kind: "up";
  readonly sinceMs: number;
}

export type Phase = Down | Opening | Up;

/** More ways were found: no · waiting until nothing is under way on those of before · holding back what is new, so that nothing is. */
export type Rejoin = "no" | "waiting" | "holding";

export function idOf(phase: Phase): LanesId | null {
  return "id" in phase ? phase.id : null;
}

/** Why they are not up. */
export function reasonOf(phase: Phase): string {
  if (phase.kind === "up") return "they are about to be opened anew";
  return phase.kind === "opening" ? phase.after.reason : phase.reason;
}

export function stateOf({ kind }: Phase): LanesState {
  return kind === "closed" ? "none" : kind;
}
