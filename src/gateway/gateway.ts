// Owns the gateway as a whole: engines, their events, figures, the address for clients and the socket for its own commands, put together.
import type { GatewayConfig, Preset } from "../config/config.ts";
import type { Running } from "../lifecycle.ts";
import type { Logger } from "../log.ts";
import { readPrivate, readPublic } from "../private-file.ts";
import { startControl } from "./control.ts";
import { Figures } from "./counts/figures.ts";
import { Fleet } from "./engines/fleet.ts";
import { EventFeed } from "./events/feed.ts";
import { Keys } from "./front/keys.ts";
import { startFront } from "./front/server.ts";
import type { Front } from "./front/server.ts";
import { BlockIndex } from "./index/index-of-blocks.ts";
import { presetOf, Router } from "./score/router.ts";
import { Tokenizer } from "./tokens/tokenizer.ts";

export interface RunningGateway extends Running {
  /** `http://host:port`, with the real port. */
  readonly url: string;
  readonly preset: Preset;
}

/** Serves until closed. Every engine was asked once before it listens. */
export async function startGateway(config: GatewayConfig, logger: Logger): Promise<RunningGateway> {
  const { engines, inFlightMax, waitMs, tokenizeMs, listen } = config;
  const keys = config.keys === null ? null : Keys.read(config.keys);
  const tls = tlsOf(config);
  const names = engines.map(({ text }) => text);
  const fleet = new Fleet({ engines: names, inFlightMax, waitMs, logger });
  const index = new BlockIndex(engines.length);
  const feeds = feedsOf(config, index, logger);
  const figures = new Figures(fleet, feeds, index);
  const preset = presetOf(config.preset, feeds.length > 0);
  const tokenizer = new Tokenizer(tokenizeMs);
  const router = new Router({ preset, fleet, index, tokenizer });
  await fleet.start();
  for (const feed of feeds) feed.start();
  const open: Running[] = [fleet, { close: () => Promise.resolve(closeAll(feeds)) }];
  const close = async (): Promise<void> => {
    for (let running = open.pop(); running !== undefined; running = open.pop()) {
      await running.close();
    }
  };
  try {
    open.push(await startControl(config.socket, { fleet, feeds, index }));
    const front: Front = await startFront({ listen, keys, tls, fleet, figures, router });
    open.push(front);
    return { url: front.url, preset, close };
  } catch (error) {
    await close();
    throw error;
  }
}

function tlsOf({ tlsCert, tlsKey }: GatewayConfig): { cert: string; key: string } | null {
  if (tlsCert === null || tlsKey === null) return null;
  return {
    cert: readPublic(tlsCert, "[gateway] tls_cert"),
    key: readPrivate(tlsKey, "[gateway] tls_key"),
  };
}

function feedsOf(
  { events, replays }: GatewayConfig,
  index: BlockIndex,
  logger: Logger,
): EventFeed[] {
  return events.map(
    ({ text }, at) =>
      new EventFeed({
        events: text,
        replays: replays[at]?.text ?? null,
        logger,
        sink: {
          apply: (event) => index.apply(at, event),
          clear: () => index.clear(at),
          trust: (isTrusted) => index.trust(at, isTrusted),
        },
      }),
  );
}

function closeAll(feeds: readonly EventFeed[]): void {
  for (const feed of feeds) feed.close();
}
