// Owns the handling of overlong prompts: cut to a plan's keys, with a warning where the arena holds less than the vaults.
import { arenaBytesFor } from "../../arena/sizing.ts";
import { HASH_BYTES } from "../../base/block.ts";
import { PLAN_KEYS_MAX } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import type { Prefetch } from "../socket/messages.ts";
import type { ArenaContext } from "./arena-context.ts";
import { blocksNeeded, cutToKeys } from "./boundary.ts";
import type { Asked, Boundary } from "./boundary.ts";
import type { Plan } from "./plan.ts";

export interface TooLongOptions {
  engine: string;
  shards: number;
  counters: SidecarCounters;
  logger: Logger;
}

/** Handles one engine's prompts, and logs each case once. */
export class TooLong {
  readonly #options: TooLongOptions;
  #isCutSaid = false;
  #isRoomSaid = false;

  constructor(options: TooLongOptions) {
    this.#options = options;
  }

  /** Cuts a prompt to the keys that a plan may have. Without an arena nothing is restored anyway. */
  cut(message: Prefetch, context: ArenaContext | null): Prefetch {
    const { shards, counters, engine, logger } = this.#options;
    const most = Math.floor(PLAN_KEYS_MAX / shards);
    const asked = message.groups.reduce((sum, { hashes }) => sum + hashes.length / HASH_BYTES, 0);
    if (context === null || asked <= most) return message;
    const groups = cutToKeys(message.groups, (group) => context.shapeOf(group).tokens, most);
    const { end: tokens } = context.costs.spanOf(message.groups);
    const { end: keptTokens } = context.costs.spanOf(groups);
    counters.add("plans_cut");
    if (!this.#isCutSaid) {
      this.#isCutSaid = true;
      const what = { engine, tokens, keptTokens, keysMax: PLAN_KEYS_MAX };
      logger.warn(what, "the prompt exceeds a plan's keys: only its beginning is looked up");
    }
    return { ...message, groups, beyond: message.beyond + tokens - keptTokens };
  }

  /** Warns where the arena cannot hold all blocks: vLLM asks once, so only blocks that fit at once are restored. */
  weighRoom(
    plan: Plan,
    asked: readonly Asked[],
    boundary: Boundary,
    { cache }: ArenaContext,
  ): void {
    const { tokens, heldTokens } = boundary;
    if (tokens >= heldTokens) return;
    const { counters, engine, logger, shards } = this.#options;
    counters.add("plans_beyond_arena");
    plan.case.roomEnds(tokens);
    if (this.#isRoomSaid) return;
    this.#isRoomSaid = true;
    const arenaBytes = arenaBytesFor(blocksNeeded(asked, heldTokens) * shards, cache.slotBytes);
    logger.warn(
      { engine, heldTokens, restoredTokens: tokens, arenaBytes },
      `shared memory cannot hold the prompt: only its beginning is restored; [sidecar] arena_bytes = ${arenaBytes} holds it`,
    );
  }
}
