// Owns the ways to one vault that its lanes are spread over: pairs of a local and a vault's address, and which of them work.
import { lookup } from "node:dns/promises";
import { BlockList, connect, isIP } from "node:net";
import { isLocal, splitAddress } from "../hosts.ts";
import { ownInterfaces } from "../interfaces.ts";
import {
  RAIL_PAUSE_MAX_MS,
  RAIL_PAUSE_MIN_MS,
  RAIL_REACH_MS,
  RAILS_MAX,
} from "../limits/general.ts";
import type { Logger } from "../log.ts";
import type { LaneRail } from "../native.ts";
import { nowMs, sleep } from "../time.ts";

export interface RailsOptions {
  /** Where the vault is said to be. */
  first: LaneRail;
  /** Addresses of this machine that are used, where a person named them. */
  locals: readonly string[];
  label: string;
  logger: Logger;
  /** Whether the very vault that told of a way answers on it. */
  answers(way: LaneRail): Promise<boolean>;
  /** There are more ways than before. */
  onMore(): void;
}

/** One that was tried. */
export interface TriedRail extends LaneRail {
  isOpen: boolean;
}

interface Way extends TriedRail {
  pauseMs: number;
  /** When it is tried next. */
  dueMs: number;
}

export class Rails {
  readonly #options: RailsOptions;
  readonly #closing = new AbortController();
  #ways: Way[];
  /** Addresses that the last hello named; null: ways from this machine wait for one. */
  #named: string | null;
  #isSeeking = false;
  #tried: Promise<void> = Promise.resolve();

  constructor(options: RailsOptions) {
    const { first, locals } = options;
    this.#options = options;
    const { host } = splitAddress(first.address);
    const ways = fitting(locals, host, first.address).map((local) => ({ ...first, local }));
    this.#ways = (ways.length > 0 ? ways : [first]).map((way, index) => newWay(way, index === 0));
    this.#named = ways.length > 0 ? null : "";
  }

  /** Which is tried first. */
  get first(): LaneRail {
    const [way = this.#options.first] = this.#ways;
    return railOf(way);
  }

  /** Those that work, as far as is known; at least one. */
  get open(): LaneRail[] {
    const open = this.#ways.filter(({ isOpen }) => isOpen);
    return open.length > 0 ? open : this.#ways.slice(0, 1);
  }

  /** All that there are, once each was tried. */
  async tried(): Promise<TriedRail[]> {
    await this.#tried;
    return this.#ways;
  }

  /** What a hello `over` a way says: further addresses of the vault. None, as usual: there is one way, and nothing is tried. */
  learn(addresses: readonly string[], over: LaneRail): void {
    const text = addresses.join();
    if (text === this.#named || this.#closing.signal.aborted) return;
    this.#named = text;
    this.#tried = this.#take(addresses, over);
  }

  /** Some of them do not work; they are tried again after a while. */
  failed(rails: readonly LaneRail[], reason: string): void {
    const ways = this.#ways.filter((way) => rails.some((rail) => isSame(way, rail)));
    if (ways.length === 0) return;
    const { label, logger } = this.#options;
    for (const way of ways) {
      logger.warn(
        { vault: label, rail: way.address, local: way.local, reason },
        "a way to the vault is out of use",
      );
      if (nowMs() - way.dueMs > RAIL_PAUSE_MAX_MS) way.pauseMs = RAIL_PAUSE_MIN_MS;
      this.#postpone(way);
    }
    void this.#seek();
  }

  /** Over which way to ask instead; the same where there is nothing else. */
  other(at: LaneRail): LaneRail {
    const others = this.#ways.filter((way) => !isOver(at, way));
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
      // What is in the clear within this machine stays there.
      const isAsLocal = isLocal({ ...other, text: one }) === isLocal({ host: first, text: first });
      return isIP(other.host) !== 0 && !isSameOne && isAsLocal;
    };
    const others = address.startsWith("unix:") ? [] : addresses.filter(isFit);
    if (others.length + locals.length === 0) return;
    const places = [
      { address, ip: first },
      ...others.map((one) => ({ address: one, ip: splitAddress(one).host })),
    ];
    const ways = locals.length > 0 ? waysFrom(locals, places) : places.flatMap(waysNear);
    this.#ways = ways.slice(0, RAILS_MAX).map((way) => newWay(way, isOver(over, way)));
    if (this.open.length > 1) this.#options.onMore();
    await this.#seek();
  }

  /** Tries what does not work until all do; resolves when each was tried. */
  async #seek(): Promise<void> {
    await this.#round();
    if (!this.#isSeeking) void this.#goOn();
  }

  async #goOn(): Promise<void> {
    const { signal } = this.#closing;
    this.#isSeeking = true;
    while (!signal.aborted && this.#ways.some(({ isOpen }) => !isOpen)) {
      await sleep(RAIL_PAUSE_MIN_MS, signal).catch(() => {});
      if (!signal.aborted) await this.#round();
    }
    this.#isSeeking = false;
  }

  async #round(): Promise<void> {
    const due = this.#ways.filter(({ isOpen, dueMs }) => !isOpen && dueMs <= nowMs());
    const tries = due.map(async (way) => {
      const isOpen = (await isReached(way)) && (await this.#options.answers(way));
      if (isOpen) [way.isOpen, way.dueMs] = [true, nowMs()];
      else this.#postpone(way);
      return isOpen;
    });
    const found = await Promise.all(tries);
    if (!found.includes(true) || this.#closing.signal.aborted) return;
    const { label, logger } = this.#options;
    logger.info(
      { vault: label, ways: this.open.map(({ address }) => address) },
      "more than one way leads to the vault",
    );
    this.#options.onMore();
  }

  #postpone(way: Way): void {
    way.isOpen = false;
    way.dueMs = nowMs() + way.pauseMs;
    way.pauseMs = Math.min(way.pauseMs * 2, RAIL_PAUSE_MAX_MS);
  }
}

function newWay(rail: LaneRail, isOpen: boolean): Way {
  return { ...rail, isOpen, pauseMs: RAIL_PAUSE_MIN_MS, dueMs: 0 };
}

function railOf({ address, local }: LaneRail): LaneRail {
  return local === undefined ? { address } : { address, local };
}

/** Whether calls that go `at` that address take this way, as far as is known. */
export function isOver(at: LaneRail, way: LaneRail): boolean {
  return at.address === way.address && (at.local === undefined || at.local === way.local);
}

function isSame(one: LaneRail, other: LaneRail): boolean {
  return one.address === other.address && one.local === other.local;
}

/** An address of the vault, and its number where the address is a name. */
interface Place {
  address: string;
  ip: string;
}

/** From each address of this machine in its network, where there are several; else as the system chooses. */
function waysNear({ address, ip }: Place): LaneRail[] {
  const locals = localsNear(ip);
  return locals.length > 1 ? locals.map((local) => ({ address, local })) : [{ address }];
}

/** From each of `locals` to what is in its network; where nothing is, a router leads to all. */
function waysFrom(locals: readonly string[], places: readonly Place[]): LaneRail[] {
  const near = places.map(({ ip }) => localsNear(ip));
  const isRouted = (local: string): boolean => !near.some((all) => all.includes(local));
  const each = (isFit: (local: string, index: number) => boolean): LaneRail[] =>
    places.flatMap(({ address, ip }, index) => {
      const from = fitting(locals, ip, address).filter((local) => isFit(local, index));
      return from.map((local) => ({ address, local }));
    });
  const ways = [
    ...each((local, index) => near[index]?.includes(local) === true),
    ...each(isRouted),
  ];
  const isNamed = (one: string): boolean => ways.some(({ address }) => address === one);
  const rest = places.filter(({ address }) => !isNamed(address));
  return [...ways, ...rest.map(({ address }) => ({ address }))];
}

/** Those that could reach a host: of its family, and of the loopback only if it is. */
function fitting(locals: readonly string[], host: string, address: string): string[] {
  if (address.startsWith("unix:")) return [];
  const isInside = isLocal({ host, text: address });
  return locals.filter((local) => {
    const isAsInside = isLocal({ host: local, text: local }) === isInside;
    return isAsInside && (isIP(host) === 0 || isIP(local) === isIP(host));
  });
}

/** Of all of them; 0: they are of both. */
function familyOf(locals: readonly string[]): number {
  const [family = 0, ...more] = new Set(locals.map(isIP));
  return more.length > 0 ? 0 : family;
}

/** Whether somebody takes connections there. What takes none is not asked: gRPC would wait for it for minutes. */
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

/** Addresses of this machine in a network that an address is of. */
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
