// Owns the rule by which a request under which engines die is not sent to one after another.
import { GATEWAY_LOSSES_MAX } from "../../base/limits/gateway.ts";
import { EngineDown } from "../engines/engine.ts";
import type { Engine, Waiting } from "../engines/engine.ts";
import type { Fleet } from "../engines/fleet.ts";
import { isUnreached } from "../engines/health.ts";

/**
 * How an attempt without a first byte ended. `unserved`: the engine did not take the request; `cut`: the connection broke, and the
 * engine is healthy; `lost`: the engine went down with the request; `guilty`: the engine died, and had no other request.
 */
export type Failure = "unserved" | "cut" | "lost" | "guilty";

/** Judges a request that failed before its first byte; call before `waiting.begun()`. Resolves once the engine's state is known. */
export async function failureOf(
  error: unknown,
  engine: Engine,
  waiting: Waiting,
  fleet: Fleet,
): Promise<Failure> {
  const { reason } = waiting.signal;
  if (reason instanceof EngineDown) {
    if (reason.kind === "away") return "unserved";
    return reason.kind === "died" && reason.isAlone ? "guilty" : "lost";
  }
  if (isUnreached(error)) {
    fleet.suspect(engine, error);
    return "unserved";
  }
  // Whoever stops a departing engine ends its requests, too.
  if (engine.isDraining || !fleet.engines.includes(engine)) return "unserved";
  const isAlone = waiting.isAlone();
  engine.breaks += 1;
  // A healthy engine has aborted what came by a broken connection.
  if (await fleet.answers(engine)) return "cut";
  return isAlone ? "guilty" : "lost";
}

/** Counts the engines lost while one request waited for its first byte. */
export class Losses {
  #lost = 0;

  /** Returns whether the request may be sent to another engine after this. */
  allows(failure: Failure): boolean {
    if (failure === "lost") this.#lost += 1;
    return failure !== "guilty" && this.#lost <= GATEWAY_LOSSES_MAX;
  }
}
