// Owns the gateway's part of `tierkv top` and the page: the request to its socket, and lines for a terminal.
import { isTierkvError } from "../base/errors.ts";
import { NONE, orNone, showMs, showShare, table } from "../base/text.ts";
import type { Config } from "../config/config.ts";
import type { ShownEngine, ShownFleet } from "../gateway/control.ts";

export interface AskedFleet {
  /** The gateway's status; null: no gateway answers. */
  fleet: ShownFleet | null;
  /** Why a gateway that runs, or was killed, does not answer; empty: it does, or there is none. */
  fleetTrouble: string;
}

export async function askFleet({ gateway: { socket } }: Config): Promise<AskedFleet> {
  const { askGateway, KILLED, STUCK } = await import("./gateway-link.ts");
  try {
    const fleet = (await askGateway(socket, "GET", "/status")) as ShownFleet;
    return { fleet, fleetTrouble: "" };
  } catch (error) {
    if (!isTierkvError(error) || error.code !== "GATEWAY_DOWN") throw error;
    const isOne = [STUCK, KILLED].includes(String(error.details["fix"]));
    return { fleet: null, fleetTrouble: isOne ? error.message : "" };
  }
}

/** Returns the sidecar's answer; null: no sidecar runs, but there is a gateway to show. Throws SIDECAR_DOWN for one that hangs. */
export async function besideFleet<T>(
  asked: Promise<T>,
  fleet: ShownFleet | null,
): Promise<T | null> {
  try {
    return await asked;
  } catch (error) {
    const isDown = isTierkvError(error) && error.code === "SIDECAR_DOWN";
    const { STUCK } = await import("./sidecar-link.ts");
    if (fleet !== null && isDown && error.details["fix"] !== STUCK) return null;
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
