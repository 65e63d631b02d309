// Owns the phases of one client's lanes, with the facts known in each.
import type { LaneRail, LanesId } from "../../base/native.ts";

/** none: not tried yet, or not wanted · opening · up · broken: tried again later. */
export type LanesState = "none" | "opening" | "up" | "broken";

/** No connections; `reason`: why. */
export interface Down {
  readonly kind: "none" | "broken" | "closed";
  readonly reason: string;
}

/** Connections under a native id, spread over rails. */
interface Opening {
  readonly kind: "opening";
  readonly id: LanesId;
  readonly rails: readonly LaneRail[];
  /** Phase before: an attempt after a break waits longer when it fails as well. */
  readonly after: Down;
}

interface Up extends Pick<Opening, "id" | "rails"> {
  readonly kind: "up";
  readonly sinceMs: number;
}

export type Phase = Down | Opening | Up;

/** Reopening over more rails: no · waiting until no request is under way · holding new requests back to get there. */
export type Rejoin = "no" | "waiting" | "holding";

export function idOf(phase: Phase): LanesId | null {
  return "id" in phase ? phase.id : null;
}

/** Reason why the lanes are not up. */
export function reasonOf(phase: Phase): string {
  if (phase.kind === "up") return "they are about to be reopened";
  return phase.kind === "opening" ? phase.after.reason : phase.reason;
}

export function stateOf({ kind }: Phase): LanesState {
  return kind === "closed" ? "none" : kind;
}
