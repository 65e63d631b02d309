// Owns the ways to one vault that its lanes are spread over: pairs of a local and a vault's address, and which of them work.
import { lookup } from "node:dns/promises";
import { BlockList, connect, isIP } from "node:net";
import { networkInterfaces } from "node:os";
import { isLocal, splitAddress } from "../hosts.ts";
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
  label: string;
  logger: Logger;
  /** Whether the very vault that told of an address answers there. */
  answers(address: string): Promise<boolean>;
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
  /** Addresses that the last hello named. */
  #named = "";
  #isSeeking = false;
  #tried: Promise<void> = Promise.resolve();

  constructor(options: RailsOptions) {
    this.#options = options;
    this.#ways = [newWay(options.first, true)];
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

  /** What a hello says: further addresses of the vault. None, as usual: there is one way, and nothing is tried. */
  learn(addresses: readonly string[]): void {
    const text = addresses.join();
    if (text === this.#named || this.#closing.signal.aborted) return;
    this.#named = text;
    this.#tried = this.#take(addresses);
  }

  /** One of them does not work; it is tried again after a while. */
  failed(rail: LaneRail, reason: string): void {
    const way = this.#ways.find(
      ({ address, local }) => address === rail.address && local === rail.local,
    );
    if (way === undefined) return;
    const { label, logger } = this.#options;
    logger.warn(
      { vault: label, rail: way.address, local: way.local, reason },
      "a way to the vault is out of use",
    );
    if (nowMs() - way.dueMs > RAIL_PAUSE_MAX_MS) way.pauseMs = RAIL_PAUSE_MIN_MS;
    this.#postpone(way);
    void this.#seek();
  }

  /** Where to ask instead of at `address`; the same where there is nothing else. */
  other(address: string): string {
    const others = this.#ways.filter((way) => way.address !== address);
    return (others.find(({ isOpen }) => isOpen) ?? others[0])?.address ?? address;
  }

  close(): void {
    this.#closing.abort();
  }

  async #take(addresses: readonly string[]): Promise<void> {
    const { address } = this.#options.first;
    const { host, port } = splitAddress(address);
    const first = addresses.length === 0 || isIP(host) !== 0 ? host : await resolved(host);
    const isFit = (one: string): boolean => {
      const other = splitAddress(one);
      const isSame = other.host === first && other.port === port;
      // What is in the clear within this machine stays there.
      const isAsLocal = isLocal({ ...other, text: one }) === isLocal({ host: first, text: first });
      return isIP(other.host) !== 0 && !isSame && isAsLocal;
    };
    const others = address.startsWith("unix:") ? [] : addresses.filter(isFit);
    if (others.length === 0) return;
    const ways = [
      waysTo(address, first),
      ...others.map((one) => waysTo(one, splitAddress(one).host)),
    ];
    const isFirst = (way: LaneRail): boolean => way.address === address;
    this.#ways = ways
      .flat()
      .slice(0, RAILS_MAX)
      .map((way) => newWay(way, isFirst(way)));
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
      const isOpen = (await isReached(way)) && (await this.#options.answers(way.address));
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

/** From each address of this machine in the network of `ip`, where there are several; else as the system chooses. */
function waysTo(address: string, ip: string): LaneRail[] {
  const locals = localsNear(ip);
  return locals.length > 1 ? locals.map((local) => ({ address, local })) : [{ address }];
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

async function resolved(host: string): Promise<string> {
  return await lookup(host).then(
    ({ address }) => address,
    () => host,
  );
}

/** Addresses of this machine in a network that an address is of. */
function localsNear(ip: string): string[] {
  const family = isIP(ip) === 6 ? "ipv6" : "ipv4";
  return Object.values(networkInterfaces())
    .flatMap((all) => all ?? [])
    .filter(({ internal, cidr }) => {
      const [net = "", bits = ""] = cidr?.split("/") ?? [];
      if (internal || isIP(net) !== isIP(ip)) return false;
      const network = new BlockList();
      network.addSubnet(net, Number(bits), family);
      return network.check(ip, family);
    })
    .map(({ address }) => address);
}
