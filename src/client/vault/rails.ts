// Owns the rails to one vault that its lanes use: pairs of a local and a vault's address, and which of them work.
import { lookup } from "node:dns/promises";
import { BlockList, connect, isIP } from "node:net";
import { isLocal, splitAddress } from "../../base/hosts.ts";
import { ownInterfaces } from "../../base/interfaces.ts";
import {
  RAIL_PAUSE_MAX_MS,
  RAIL_PAUSE_MIN_MS,
  RAIL_REACH_MS,
  RAILS_MAX,
} from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { LaneRail } from "../../base/native.ts";
import { nowMs, sleep } from "../../base/time.ts";

const PORT_MAX = 65_535;

export interface RailsOptions {
  /** Configured address of the vault. */
  first: LaneRail;
  /** Addresses of this machine to use, where the configuration names them. */
  locals: readonly string[];
  label: string;
  logger: Logger;
  /** Returns whether the vault that announced a rail answers on it. */
  answers(rail: LaneRail): Promise<boolean>;
  /** Called when there are more rails than before. */
  onMore(): void;
}

/** A rail after a try. */
export interface TriedRail extends LaneRail {
  isOpen: boolean;
}

interface RailState extends TriedRail {
  pauseMs: number;
  /** Time of the next try. */
  dueMs: number;
}

export class Rails {
  readonly #options: RailsOptions;
  readonly #closing = new AbortController();
  #rails: RailState[];
  /** Addresses in the last hello; null: configured local addresses still wait for a hello. */
  #named: string | null;
  #isSeeking = false;
  #tried: Promise<void> = Promise.resolve();

  constructor(options: RailsOptions) {
    const { first, locals } = options;
    this.#options = options;
    const { host } = splitAddress(first.address);
    const rails = fitting(locals, host, first.address).map((local) => ({ ...first, local }));
    this.#rails = (rails.length > 0 ? rails : [first]).map((rail, index) =>
      newState(rail, index === 0),
    );
    this.#named = rails.length > 0 ? null : "";
  }

  /** Rail to try first. */
  get first(): LaneRail {
    const [rail = this.#options.first] = this.#rails;
    return railOf(rail);
  }

  /** Rails that work, as far as known; at least one. */
  get open(): LaneRail[] {
    const open = this.#rails.filter(({ isOpen }) => isOpen);
    return open.length > 0 ? open : this.#rails.slice(0, 1);
  }

  /** Rails out of use while another is used, as `address` or `address from local`. */
  get cut(): string[] {
    const cut = this.#rails.filter(({ isOpen, dueMs }) => !isOpen && dueMs > 0);
    return cut.length === this.#rails.length ? [] : cut.map(textOf);
  }

  /** Returns all rails, once each was tried. */
  async tried(): Promise<TriedRail[]> {
    await this.#tried;
    return this.#rails;
  }

  /** Takes the vault's further addresses from a hello `over` a rail. Usually there are none, and one rail needs no try. */
  learn(addresses: readonly string[], over: LaneRail): void {
    const text = addresses.join();
    if (text === this.#named || this.#closing.signal.aborted) return;
    this.#named = text;
    this.#tried = this.#take(addresses, over);
  }

  /** Marks rails as failed; they are tried again after a while. */
  failed(rails: readonly LaneRail[], reason: string): void {
    const broken = this.#rails.filter((rail) => rails.some((one) => isSame(rail, one)));
    if (broken.length === 0) return;
    const { label, logger } = this.#options;
    for (const rail of broken) {
      logger.warn(
        { vault: label, rail: rail.address, local: rail.local, reason },
        "a path to the vault is out of use",
      );
      if (nowMs() - rail.dueMs > RAIL_PAUSE_MAX_MS) rail.pauseMs = RAIL_PAUSE_MIN_MS;
      this.#postpone(rail);
    }
    void this.#seek();
  }

  /** Returns another rail to use; the same when there is no other. */
  other(at: LaneRail): LaneRail {
    const others = this.#rails.filter((rail) => !isOver(at, rail));
    const next = others.find(({ isOpen }) => isOpen) ?? others[0];
    return next === undefined ? at : railOf(next);
  }

  close(): void {
    this.#closing.abort();
  }

  async #take(addresses: readonly string[], over: LaneRail): Promise<void> {
    const { first: said, locals } = this.#options;
    const { address } = said;
    const { host, port } = splitAddress(address);
    const first =
      addresses.length + locals.length === 0 || isIP(host) !== 0
        ? host
        : await resolved(host, familyOf(locals));
    const isFit = (one: string): boolean => {
      const other = splitAddress(one);
      const isSameOne = other.host === first && other.port === port;
      // Traffic that is in the clear within this machine stays on it.
      const isAsLocal = isLocal({ ...other, text: one }) === isLocal({ host: first, text: first });
      return isIP(other.host) !== 0 && isPort(other.port) && !isSameOne && isAsLocal;
    };
    const others = address.startsWith("unix:") ? [] : addresses.filter(isFit);
    if (others.length + locals.length === 0) return;
    const places = [
      { address, ip: first },
      ...others.map((one) => ({ address: one, ip: splitAddress(one).host })),
    ];
    const rails = locals.length > 0 ? railsFrom(locals, places) : places.flatMap(railsNear);
    this.#rails = rails.slice(0, RAILS_MAX).map((rail) => newState(rail, isOver(over, rail)));
    if (this.open.length > 1) this.#options.onMore();
    await this.#seek();
  }

  /** Tries failed rails until all work; resolves when each was tried once. */
  async #seek(): Promise<void> {
    await this.#round();
    if (!this.#isSeeking) void this.#goOn();
  }

  async #goOn(): Promise<void> {
    const { signal } = this.#closing;
    this.#isSeeking = true;
    while (!signal.aborted && this.#rails.some(({ isOpen }) => !isOpen)) {
      await sleep(RAIL_PAUSE_MIN_MS, signal).catch(() => {});
      if (!signal.aborted) await this.#round();
    }
    this.#isSeeking = false;
  }

  async #round(): Promise<void> {
    const due = this.#rails.filter(({ isOpen, dueMs }) => !isOpen && dueMs <= nowMs());
    const tries = due.map(async (rail) => {
      const isOpen = (await isReached(rail)) && (await this.#options.answers(rail));
      if (isOpen) [rail.isOpen, rail.dueMs] = [true, nowMs()];
      else this.#postpone(rail);
      return isOpen;
    });
    const found = await Promise.all(tries);
    if (!found.includes(true) || this.#closing.signal.aborted) return;
    const { label, logger } = this.#options;
    logger.info(
      { vault: label, ways: this.open.map(({ address }) => address) },
      "more than one path leads to the vault",
    );
    this.#options.onMore();
  }

  #postpone(rail: RailState): void {
    rail.isOpen = false;
    rail.dueMs = nowMs() + rail.pauseMs;
    rail.pauseMs = Math.min(rail.pauseMs * 2, RAIL_PAUSE_MAX_MS);
  }
}

function newState(rail: LaneRail, isOpen: boolean): RailState {
  return { ...rail, isOpen, pauseMs: RAIL_PAUSE_MIN_MS, dueMs: 0 };
}

function railOf({ address, local }: LaneRail): LaneRail {
  return local === undefined ? { address } : { address, local };
}

function textOf({ address, local }: LaneRail): string {
  return local === undefined ? address : `${address} from ${local}`;
}

/** Returns whether calls to `at` take this rail, as far as known. */
export function isOver(at: LaneRail, rail: LaneRail): boolean {
  return at.address === rail.address && (at.local === undefined || at.local === rail.local);
}

function isSame(one: LaneRail, other: LaneRail): boolean {
  return one.address === other.address && one.local === other.local;
}

/** An address of the vault, and its IP where the address is a name. */
interface Place {
  address: string;
  ip: string;
}

/** Returns rails from each local address in its network where there are several; otherwise the system chooses one. */
function railsNear({ address, ip }: Place): LaneRail[] {
  const locals = localsNear(ip);
  return locals.length > 1 ? locals.map((local) => ({ address, local })) : [{ address }];
}

/** Returns rails from each of `locals` into its own network; a local address outside all networks is routed to every place. */
function railsFrom(locals: readonly string[], places: readonly Place[]): LaneRail[] {
  const near = places.map(({ ip }) => localsNear(ip));
  const isRouted = (local: string): boolean => !near.some((all) => all.includes(local));
  const each = (isFit: (local: string, index: number) => boolean): LaneRail[] =>
    places.flatMap(({ address, ip }, index) => {
      const from = fitting(locals, ip, address).filter((local) => isFit(local, index));
      return from.map((local) => ({ address, local }));
    });
  const rails = [
    ...each((local, index) => near[index]?.includes(local) === true),
    ...each(isRouted),
  ];
  const isNamed = (one: string): boolean => rails.some(({ address }) => address === one);
  const rest = places.filter(({ address }) => !isNamed(address));
  return [...rails, ...rest.map(({ address }) => ({ address }))];
}

/** Returns local addresses that could reach a host: of its family, and loopback only for loopback. */
function fitting(locals: readonly string[], host: string, address: string): string[] {
  if (address.startsWith("unix:")) return [];
  const isInside = isLocal({ host, text: address });
  return locals.filter((local) => {
    const isAsInside = isLocal({ host: local, text: local }) === isInside;
    return isAsInside && (isIP(host) === 0 || isIP(local) === isIP(host));
  });
}

/** Returns the family of all addresses; 0: both occur. */
function familyOf(locals: readonly string[]): number {
  const [family = 0, ...more] = new Set(locals.map(isIP));
  return more.length > 0 ? 0 : family;
}

/** False for what a broken vault may send, because connecting there would throw. */
function isPort(port: number): boolean {
  return Number.isInteger(port) && port > 0 && port <= PORT_MAX;
}

/** Returns whether the rail takes TCP connections, because gRPC would wait minutes for one that does not. */
function isReached({ address, local }: LaneRail): Promise<boolean> {
  const socket = connect({
    ...splitAddress(address),
    ...(local === undefined ? {} : { localAddress: local }),
  });
  return new Promise<boolean>((resolve) => {
    socket.setTimeout(RAIL_REACH_MS, () => resolve(false));
    socket.once("connect", () => resolve(true));
    socket.once("error", () => resolve(false));
  }).finally(() => socket.destroy());
}

async function resolved(host: string, family: number): Promise<string> {
  return await lookup(host, { family }).then(
    ({ address }) => address,
    () => host,
  );
}

/** Returns this machine's addresses in the network of an IP. */
function localsNear(ip: string): string[] {
  const family = isIP(ip) === 6 ? "ipv6" : "ipv4";
  return ownInterfaces()
    .filter(({ internal, cidr }) => {
      const [net = "", bits = ""] = cidr?.split("/") ?? [];
      if (internal || isIP(net) !== isIP(ip)) return false;
      const network = new BlockList();
      network.addSubnet(net, Number(bits), family);
      return network.check(ip, family);
    })
    .map(({ address }) => address);
}
