// Owns the gateway's part of `tierkv top` and the page: the request to its socket, and lines for a terminal.
import { isTierkvError } from "../base/errors.ts";
import { NONE, orNone, showMs, showShare, table } from "../base/text.ts";
import type { Config } from "../config/config.ts";
import type { ShownEngine, ShownFleet } from "../gateway/control.ts";

/** Returns the gateway's status; null: no gateway answers. */
export async function askFleet({ gateway: { socket } }: Config): Promise<ShownFleet | null> {
  const { askGateway } = await import("./gateway-link.ts");
  try {
    return (await askGateway(socket, "GET", "/status")) as ShownFleet;
  } catch (error) {
    if (isTierkvError(error) && error.code === "GATEWAY_DOWN") return null;
    throw error;
  }
}

/** Returns the sidecar's answer; null: no sidecar answers, but there is a gateway to show. */
export async function besideFleet<T>(
  asked: Promise<T>,
  fleet: ShownFleet | null,
): Promise<T | null> {
  try {
    return await asked;
  } catch (error) {
    if (fleet !== null && isTierkvError(error) && error.code === "SIDECAR_DOWN") return null;
    throw error;
  }
}

export function describeFleet({ engines, waiting }: ShownFleet): string[] {
  const head = ["gateway", "state", "events", "in flight", "prompts", "queue", "own", "vaults"];
  const rows = [[...head, "first token (predicted)", "models"], ...engines.map(rowOf)];
  return [...table(rows), `${waiting} wait for an engine with room`];
}

function rowOf(one: ShownEngine): string[] {
  const { tokens, held, pulled, predictedMs, measuredMs } = one.recent;
  const share = (part: number): string => (tokens === 0 ? NONE : showShare(part / tokens));
  return [
    one.engine,
    one.state === "down" ? "DOWN" : one.state,
    one.events ?? NONE,
    String(one.inFlight),
    String(one.prompts),
    showMs(one.queueMs),
    share(held),
    share(pulled),
    `${orNone(measuredMs, showMs)} (${orNone(predictedMs, showMs)})`,
    one.models.join(", ") || NONE,
  ];
}
