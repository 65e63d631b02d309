// Owns assembling the gateway: engines, their events, metrics, the address for clients, and the control socket.
import { sourceOf } from "../base/hosts.ts";
import { readKeyPair } from "../base/key-pair.ts";
import type { KeyPair } from "../base/key-pair.ts";
import type { Running } from "../base/lifecycle.ts";
import { GATEWAY_DISCOVER_FIRST_MS } from "../base/limits/gateway.ts";
import type { Logger } from "../base/log.ts";
import { readPrivate, readPublic } from "../base/private-file.ts";
import { withDeadline } from "../base/time.ts";
import type { Address, GatewayConfig, Preset } from "../config/config.ts";
import { startControl } from "./control.ts";
import { Figures } from "./counts/figures.ts";
import { accessWith } from "./engines/access.ts";
import type { EngineAccess } from "./engines/access.ts";
import { addressesOf, Discovery } from "./engines/discovery.ts";
import type { DiscoveryOptions, Look } from "./engines/discovery.ts";
import type { Engine } from "./engines/engine.ts";
import { Fleet } from "./engines/fleet.ts";
import { BodyBudget } from "./front/body.ts";
import { Keys } from "./front/keys.ts";
import { Leaving } from "./front/leaving.ts";
import { StoredResponses } from "./front/responses.ts";
import { startFront } from "./front/server.ts";
import type { Front } from "./front/server.ts";
import { BlockIndex } from "./index/index-of-blocks.ts";
import { Keeper, loadSaved } from "./keeper.ts";
import type { Picking } from "./picker/exchange.ts";
import type { RunningPicker } from "./picker/picker.ts";
import { Roster } from "./roster.ts";
import { presetOf, Router } from "./score/router.ts";
import { OwnTokenizers } from "./tokens/own.ts";
import { Tokenizer } from "./tokens/tokenizer.ts";
import type { Maker } from "./tokens/tokenizer.ts";
import { Lookups } from "./vaults/lookups.ts";
import type { AskedVault } from "./vaults/lookups.ts";

export interface RunningGateway extends Running {
  /** `http://host:port`, with the real port. */
  readonly url: string;
  readonly preset: Preset;
  /** Address that Envoy asks, with the real port; null: none. */
  readonly extProc: string | null;
  /** Engines listed or found by the time the gateway listens. */
  readonly engines: readonly string[];
}

/** Returns the vaults that may be asked now; empty: none. */
export type Vaults = () => readonly AskedVault[];

const NO_VAULTS: Vaults = () => [];

/** Serves metrics at `[gateway] metrics_listen`, and why the gateway takes no requests (null: it does); undefined: nowhere. */
export type Scrape = (
  read: () => Promise<string>,
  trouble: () => string | null,
) => Promise<Running | undefined>;

const NO_SCRAPE: Scrape = () => Promise.resolve(undefined);

/** Serves until closed. Asks every engine once before it listens. `look`: a source of more engines. */
export async function startGateway(
  config: GatewayConfig,
  logger: Logger,
  look: Look | null = null,
  vaults: Vaults = NO_VAULTS,
  scrape: Scrape = NO_SCRAPE,
): Promise<RunningGateway> {
  const { keys, tls, access } = readAccess(config);
  const parts = partsOf(config, logger, look !== null, vaults, access);
  const { fleet, roster, figures, router, index, preset, own } = parts;
  const open: Running[] = [];
  const close = async (): Promise<void> => {
    for (let running = open.pop(); running !== undefined; running = open.pop()) {
      await running.close();
    }
  };
  try {
    open.push(own);
    await own.start();
    open.push(fleet);
    await fleet.start();
    open.push(roster);
    open.push(...(await startFollowing(config, look, parts, logger)));
    open.push(new Keeper({ path: config.indexFile, index, roster, logger }));
    const leaving = new Leaving({ ...config, logger });
    const metrics = await scrape(
      () => figures.text(),
      () => troubleOf(fleet, leaving),
    );
    if (metrics !== undefined) open.push(metrics);
    const shown = { fleet, roster, index, router, keys, own };
    open.push(await startControl(config.socket, shown));
    const { allowedOrigins: origins, showEngine: hasEngine } = config;
    const serving = { keys, fleet, figures, router, budget: new BodyBudget(), hasEngine };
    const registry = config.sequences ? roster : null;
    const stored = new StoredResponses(`${config.indexFile}.responses`, logger);
    open.push(stored);
    const keeps = (): boolean => roster.hasVault;
    const how = { listen: config.listen, tls, registry, origins, stored, leaving, keeps };
    const front: Front = await startFront({ ...how, ...serving });
    const serves: Running[] = [front];
    let isReady = false;
    const leave = async (): Promise<void> => {
      // Clients come only once it is ready.
      if (isReady) await leaving.begin();
      await Promise.all(serves.map((one) => one.close()));
    };
    open.push({ close: leave });
    const extProc = config.extProc && (await pickerAt(config.extProc.text, serving, leaving));
    if (extProc !== null) serves.push(extProc);
    const engines = fleet.engines.map(({ name }) => name);
    isReady = true;
    return { url: front.url, preset, extProc: extProc?.address ?? null, engines, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Loads gRPC only where Envoy asks. */
async function pickerAt(
  listen: string,
  picking: Picking,
  leaving: Leaving,
): Promise<RunningPicker> {
  const { startPicker } = await import("./picker/picker.ts");
  return startPicker(listen, picking, leaving);
}

function troubleOf(fleet: Fleet, leaving: Leaving): string | null {
  if (leaving.isLeaving) return "the gateway is leaving";
  return fleet.hasAny(null) ? null : "no engine answers";
}

interface Parts {
  fleet: Fleet;
  roster: Roster;
  index: BlockIndex;
  figures: Figures;
  router: Router;
  preset: Preset;
  own: OwnTokenizers;
}

function partsOf(
  config: GatewayConfig,
  logger: Logger,
  isLooking: boolean,
  vaults: Vaults,
  access: EngineAccess,
): Parts {
  const { inFlightMax, waitMs, tokenizeMs, ttftMs, prefillTokens, objectives, lookupMs } = config;
  const engines = config.engines.map(({ text }) => text);
  const prefill = new Set(config.prefill.map(({ text }) => text));
  const fleet = new Fleet({ engines, prefill, inFlightMax, waitMs, access, logger });
  const saved = loadSaved(config.indexFile, logger);
  const index = new BlockIndex();
  const onGone = ({ name }: Engine): void => void figures.forget(name);
  const roster = new Roster({
    fleet,
    index,
    saved,
    isByNumber: config.extProc !== null,
    logger,
    onGone,
  });
  const figures = new Figures(fleet, roster, index);
  const hasEvents = isLooking || config.events.length > 0 || config.discoverEvents !== null;
  const preset = presetOf(config.preset, hasEvents);
  const own = new OwnTokenizers(config.tokenizers, logger);
  const onMade = (maker: Maker): void => figures.tokenized(maker);
  const tokenizer = new Tokenizer({ timeoutMs: tokenizeMs, own, onMade });
  const how = { ttftMs, prefillTokens, objectives };
  const onOutcome: Figures["lookedUp"] = (...told) => figures.lookedUp(...told);
  // Other presets weigh nothing that a vault holds.
  const isWeighed = preset === "earliest-token";
  const asking = { vaults, index, lookupMs, onOutcome, logger };
  const lookups = isWeighed ? new Lookups(asking) : null;
  const router = new Router({ preset, fleet, roster, index, tokenizer, lookups, logger, ...how });
  return { fleet, roster, index, figures, router, preset, own };
}

/** Follows the events of listed engines, and starts the discovery of others. */
async function startFollowing(
  config: GatewayConfig,
  look: Look | null,
  { fleet, roster }: Parts,
  logger: Logger,
): Promise<Discovery[]> {
  for (const [at, { text: events }] of config.events.entries()) {
    const engine = fleet.engines[at];
    const replays = config.replays[at]?.text ?? null;
    if (engine !== undefined) roster.follow(engine, { events, replays });
  }
  const { discover } = config;
  const all = [
    ...(discover === null || sourceOf(discover.text) !== null
      ? []
      : [behindName(config, discover)]),
    ...(look === null ? [] : [{ of: discover?.text ?? "the sidecar of this host", look }]),
  ];
  const discoveries = all.map((source) => discoveryOf(source, roster, logger));
  const first = Promise.all(discoveries.map((discovery) => discovery.start()));
  await withDeadline(first, GATEWAY_DISCOVER_FIRST_MS, "the first list of engines").catch(() => {
    const of = all.map((source) => source.of);
    logger.warn({ of }, "engines are not listed yet: the gateway serves without the list");
  });
  return discoveries;
}

type Source = Pick<DiscoveryOptions, "of" | "look">;

function behindName(
  { discoverEvents, discoverReplays }: GatewayConfig,
  { host, port }: Address,
): Source {
  const at = (found: string, place: number | null): string | null =>
    place === null ? null : `${found}:${place}`;
  const look: Look = async () =>
    (await addressesOf(host)).map((found) => ({
      address: `${found}:${port}`,
      events: at(found, discoverEvents),
      replays: at(found, discoverReplays),
    }));
  return { of: host, look };
}

function discoveryOf(source: Source, roster: Roster, logger: Logger): Discovery {
  const ifThere = (address: string, what: (engine: Engine) => void): void => {
    const engine = roster.find(address);
    if (engine !== null) what(engine);
  };
  return new Discovery({
    ...source,
    logger,
    onFound: (one) => roster.add(one.address, one.address, one) !== null,
    onMoved: (one) => ifThere(one.address, (engine) => roster.follow(engine, one)),
    onGone: ({ address }) => ifThere(address, (engine) => roster.remove(engine)),
  });
}

/** Throws CREDENTIALS. */
export function readAccess(config: GatewayConfig): {
  keys: Keys | null;
  tls: KeyPair | null;
  access: EngineAccess;
} {
  const { keys, engineKey, engineCa } = config;
  const key = engineKey === null ? null : readPrivate(engineKey, "[gateway] engine_key").trim();
  const ca = engineCa === null ? null : readPublic(engineCa, "[gateway] engine_ca");
  return {
    keys: keys === null ? null : Keys.read(keys),
    tls: tlsOf(config),
    access: accessWith(key, ca),
  };
}

function tlsOf({ tlsCert, tlsKey }: GatewayConfig): KeyPair | null {
  if (tlsCert === null || tlsKey === null) return null;
  return readKeyPair(tlsCert, tlsKey, "[gateway] tls");
}
