// Owns the gateway as a whole: engines, figures, the address for clients and the socket for its own commands, put together.
import type { GatewayConfig } from "../config/config.ts";
import type { Running } from "../lifecycle.ts";
import type { Logger } from "../log.ts";
import { startControl } from "./control.ts";
import { Figures } from "./counts/figures.ts";
import { Fleet } from "./engines/fleet.ts";
import { startFront } from "./front/server.ts";
import type { Front } from "./front/server.ts";
import { orderOf } from "./score/presets.ts";

export interface RunningGateway extends Running {
  /** `http://host:port`, with the real port. */
  readonly url: string;
}

/** Serves until closed. Every engine was asked once before it listens. */
export async function startGateway(config: GatewayConfig, logger: Logger): Promise<RunningGateway> {
  const { engines, inFlightMax, waitMs, preset } = config;
  const names = engines.map(({ text }) => text);
  const fleet = new Fleet({ engines: names, inFlightMax, waitMs, logger });
  const figures = new Figures(fleet);
  await fleet.start();
  const open: Running[] = [fleet];
  const close = async (): Promise<void> => {
    for (let running = open.pop(); running !== undefined; running = open.pop()) {
      await running.close();
    }
  };
  try {
    open.push(await startControl(config.socket, fleet));
    const order = orderOf(preset);
    const front: Front = await startFront({ listen: config.listen, fleet, figures, order, preset });
    open.push(front);
    return { url: front.url, close };
  } catch (error) {
    await close();
    throw error;
  }
}
