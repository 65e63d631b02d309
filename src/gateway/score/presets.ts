// Owns the presets: how each orders the engines that may take a request.
import type { Preset } from "../../config/config.ts";
import { jitterMs } from "../../time.ts";
import type { Engine } from "../engines/engine.ts";
import type { Order } from "../engines/fleet.ts";

/** The fewest requests in flight first; equals in random order, because the first in the list would get all when idle. */
function leastLoad(engines: readonly Engine[]): Engine[] {
  const drawn = engines.map((engine) => ({ engine, die: jitterMs(0, 1) }));
  drawn.sort((a, b) => a.engine.inFlight - b.engine.inFlight || a.die - b.die);
  return drawn.map(({ engine }) => engine);
}

/** Each in turn, by the turn it had last: an engine that was away is not given all it missed. */
function roundRobin(): Order {
  const lastTurn = new Map<Engine, number>();
  let turn = 0;
  return (engines) => {
    const ordered = [...engines].sort((a, b) => (lastTurn.get(a) ?? 0) - (lastTurn.get(b) ?? 0));
    const [first] = ordered;
    turn += 1;
    if (first !== undefined) lastTurn.set(first, turn);
    return ordered;
  };
}

/** The order of a preset, which may remember what it chose. */
export function orderOf(preset: Preset): Order {
  return preset === "round-robin" ? roundRobin() : leastLoad;
}
