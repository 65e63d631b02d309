// Owns the presets: how each orders the engines that may take a request.
import { GATEWAY_TIE_MS, GATEWAY_TIE_SHARE } from "../../base/limits/gateway.ts";
import { jitterMs } from "../../base/time.ts";
import type { Engine } from "../engines/engine.ts";
import type { Order } from "../engines/fleet.ts";

/** Weights of the routing that this preset repeats: a whole hit counts one and a half times an idle engine. */
const PREFIX_WEIGHT = 3;
const LOAD_WEIGHT = 2;

/** Sorts by the first rank, then the second, ascending; ties in random order, because one engine would get all when idle. */
function ordered(
  engines: readonly Engine[],
  rankOf: (engine: Engine) => readonly [number, number],
): Engine[] {
  const drawn = engines.map((engine) => ({ engine, rank: rankOf(engine), die: jitterMs(0, 1) }));
  drawn.sort((a, b) => a.rank[0] - b.rank[0] || a.rank[1] - b.rank[1] || a.die - b.die);
  return drawn.map(({ engine }) => engine);
}

/** Fewest requests in flight first. */
export const leastLoad: Order = (engines) => ordered(engines, ({ inFlight }) => [inFlight, 0]);

/** Round robin by each engine's last turn, so that one that was away gets no backlog. */
export function roundRobin(): Order {
  const lastTurn = new Map<Engine, number>();
  let turn = 0;
  return (engines) => {
    const inTurn = [...engines].sort((a, b) => (lastTurn.get(a) ?? 0) - (lastTurn.get(b) ?? 0));
    const [first] = inTurn;
    turn += 1;
    if (first !== undefined) lastTurn.set(first, turn);
    return inTurn;
  };
}

/** Highest sum of the prompt's held fraction (`shareOf`, 0 to 1) and free capacity first. */
export function prefixWeighted(shareOf: (engine: Engine) => number): Order {
  return (engines) =>
    ordered(engines, (engine) => {
      const score = PREFIX_WEIGHT * shareOf(engine) + LOAD_WEIGHT * (1 - engine.load);
      return [-score, 0];
    });
}

/**
 * Earliest first token first. Among engines about as early that hold as much of the prompt as the first, fewest requests in
 * flight, so that cold prompts spread.
 */
export function soonest(
  predictMs: (engine: Engine) => number,
  hitOf: (engine: Engine) => number,
): Order {
  return (engines) => {
    const timed = new Map(engines.map((engine) => [engine, predictMs(engine)]));
    const msOf = (engine: Engine): number => timed.get(engine) ?? 0;
    const bestMs = Math.min(...timed.values());
    const tieMs = bestMs * (1 + GATEWAY_TIE_SHARE) + GATEWAY_TIE_MS;
    const mostHeld = Math.max(...engines.filter((e) => msOf(e) === bestMs).map(hitOf));
    return ordered(engines, (engine) =>
      msOf(engine) <= tieMs && hitOf(engine) === mostHeld
        ? [bestMs, engine.inFlight]
        : [msOf(engine), engine.inFlight],
    );
  };
}
