// Owns which engines exist while the gateway runs, each with its members in the index: itself, or its data-parallel ranks.
import { isIP } from "node:net";
import { splitAddress } from "../base/hosts.ts";
import {
  GATEWAY_ENGINES_MAX,
  GATEWAY_LEFT_OUT_MAX,
  GATEWAY_PARKED_MAX,
  GATEWAY_PARKED_MS,
  GATEWAY_RANKS_MAX,
} from "../base/limits/gateway.ts";
import type { Logger } from "../base/log.ts";
import type { Publishing } from "./engines/discovery.ts";
import type { Engine } from "./engines/engine.ts";
import type { Fleet } from "./engines/fleet.ts";
import type { EventFeed } from "./events/feed.ts";
import type { Agreement } from "./hashes/agreement.ts";
import type { BlockIndex, Tier } from "./index/index-of-blocks.ts";
import { Member } from "./members/member.ts";
import { Ranks } from "./members/ranks.ts";
import type { Followed, Loaded } from "./members/saved-index.ts";

export interface RosterOptions {
  fleet: Fleet;
  index: BlockIndex;
  /** Index that an earlier gateway saved; each engine's part is used once. */
  saved: Loaded | null;
  /** Whether engines need addresses: Envoy, told a name, answers 503. */
  isByNumber?: boolean;
  logger: Logger;
  onGone(engine: Engine): void;
}

const NOWHERE: Publishing = { events: null, replays: null };

/** The members of one engine, rank 0 first, and the question how many there are. */
interface Follow {
  members: Member[];
  ranks: Ranks | null;
}

/** Members of an engine that left, whose events go on. */
interface Parked {
  members: Member[];
  timer: NodeJS.Timeout;
}

export class Roster {
  readonly #options: RosterOptions;
  readonly #followed = new Map<Engine, Follow>();
  /** By the addresses of events and replays. */
  readonly #parked = new Map<string, Parked>();
  /** Engines that were left out, and logged; discovery offers them again and again. */
  readonly #leftOut = new Set<string>();

  constructor(options: RosterOptions) {
    this.#options = options;
  }

  /** Returns the feed that knows least, of an engine's ranks; null: the engine publishes no events to the gateway. */
  feedOf(engine: Engine): EventFeed | null {
    const feeds = this.#heard(engine).map(({ feed }) => feed);
    return feeds.find((feed) => feed?.state !== "live") ?? feeds[0] ?? null;
  }

  /** Returns what is known of how an engine hashes, of the rank of which least is; null: it publishes no events to the gateway. */
  agreementOf(engine: Engine): Agreement | null {
    const found = this.#heard(engine).map(({ agreement }) => agreement);
    return found.find((agreement) => agreement?.state !== "agreed") ?? found[0] ?? null;
  }

  #heard(engine: Engine): readonly Member[] {
    return this.#followed.get(engine)?.members.filter(({ isFollowed }) => isFollowed) ?? [];
  }

  /** Returns the engine's members in the index: one, or one for each of its ranks. */
  membersOf(engine: Engine): readonly Member[] {
    return this.#of(engine).members;
  }

  /** Number of blocks that an engine reported, in all its ranks. */
  blocksOf(engine: Engine, tier: Tier = "gpu"): number {
    const { index } = this.#options;
    return this.membersOf(engine).reduce((sum, { holder }) => sum + index.blocks(holder, tier), 0);
  }

  /** Whether an engine has named a vault, and so runs tierKV. */
  get hasVault(): boolean {
    const { index } = this.#options;
    return [...this.#followed.values()].some(({ members }) =>
      members.some(({ holder }) => index.pulls(holder)),
    );
  }

  /** Returns the members whose events are complete, with the last batch applied. */
  followed(): Followed[] {
    return [...this.#followed.values()]
      .flatMap(({ members }) => members)
      .flatMap((member) => member.followed() ?? []);
  }

  #of(engine: Engine): Follow {
    const known = this.#followed.get(engine);
    if (known !== undefined) return known;
    const follow = { members: [this.#member(engine, NOWHERE, null)], ranks: null };
    this.#followed.set(engine, follow);
    return follow;
  }

  #member(engine: Engine, publishing: Publishing, rank: number | null): Member {
    const { index, saved, logger } = this.#options;
    const { events } = publishing;
    const known = events === null ? undefined : saved?.get(events);
    if (events !== null) saved?.delete(events);
    return new Member({ engine, publishing, rank, index, saved: known ?? null, logger });
  }

  /** Follows events at a new address; reports from the old one no longer count. */
  follow(engine: Engine, publishing: Publishing): void {
    this.#unfollow(engine);
    if (publishing.events === null) return;
    const parked = this.#unpark(publishing);
    for (const member of parked ?? []) member.adopt(engine);
    const members = parked ?? [this.#member(engine, publishing, null)];
    const onRanks = (count: number): void => this.#spread(engine, publishing, count);
    const ranks = new Ranks(engine, onRanks, () => members[0]?.feed?.state === "live");
    this.#followed.set(engine, { members, ranks });
    if (parked === null) members[0]?.start();
    void ranks.start();
  }

  /** Follows each rank of an engine, whose publisher has the port of the first one plus the rank. */
  #spread(engine: Engine, publishing: Publishing, count: number): void {
    const follow = this.#followed.get(engine);
    const { events, replays } = publishing;
    if (follow === undefined || events === null) return;
    const { logger } = this.#options;
    if (count > GATEWAY_RANKS_MAX) {
      const fix = "the gateway does not follow the blocks of ranks beyond that number";
      logger.warn(
        { engine: engine.name, count, most: GATEWAY_RANKS_MAX, fix },
        "ranks are left out",
      );
    }
    const ranks = Math.min(count, GATEWAY_RANKS_MAX);
    for (const member of follow.members.splice(ranks)) member.close();
    for (const [rank, member] of follow.members.entries()) member.rank = ranks > 1 ? rank : null;
    for (let rank = follow.members.length; rank < ranks; rank += 1) {
      const own = { events: portPlus(events, rank), replays: replays && portPlus(replays, rank) };
      const member = this.#member(engine, own, rank);
      follow.members.push(member);
      member.start();
    }
  }

  #unfollow(engine: Engine): void {
    const follow = this.#followed.get(engine);
    this.#followed.delete(engine);
    follow?.ranks?.close();
    for (const member of follow?.members ?? []) member.close();
  }

  /** Keeps following an engine that left, because a list may miss an engine that never stopped. */
  #park(engine: Engine): void {
    const follow = this.#followed.get(engine);
    const [first] = follow?.members ?? [];
    if (follow === undefined || !first?.isFollowed || this.#parked.size >= GATEWAY_PARKED_MAX) {
      return this.#unfollow(engine);
    }
    this.#followed.delete(engine);
    follow.ranks?.close();
    const key = keyOf(first.publishing);
    this.#unpark(first.publishing)?.forEach((member) => member.close());
    const timer = setTimeout(() => {
      for (const member of this.#unpark(first.publishing) ?? []) member.close();
    }, GATEWAY_PARKED_MS);
    timer.unref();
    this.#parked.set(key, { members: follow.members, timer });
  }

  /** null: no such engine left lately. */
  #unpark(publishing: Publishing): Member[] | null {
    const key = keyOf(publishing);
    const parked = this.#parked.get(key);
    if (parked === undefined) return null;
    this.#parked.delete(key);
    clearTimeout(parked.timer);
    return parked.members;
  }

  /** null: there is no such engine. */
  find(name: string, id: string = name): Engine | null {
    const { fleet } = this.#options;
    return fleet.engines.find((engine) => engine.name === name && engine.id === id) ?? null;
  }

  /** Returns why this engine can never be added; null: it can. */
  objectionTo(name: string): string | null {
    if (this.#options.isByNumber !== true || isIP(splitAddress(name).host) !== 0) return null;
    return "with [gateway] ext_proc Envoy is told addresses, and this is a name: register the engine's IP address";
  }

  /** Adds an engine, or returns the one already there; null: it is a name where none may be, or there is no room. */
  add(name: string, id: string = name, publishing: Publishing = NOWHERE): Engine | null {
    const { fleet } = this.#options;
    const engine = this.find(name, id);
    if (engine !== null) return engine;
    const objection = this.objectionTo(name);
    const added = objection === null ? fleet.add(name, id) : null;
    if (added === null) this.#sayLeftOut(name, objection);
    else this.#leftOut.delete(name);
    if (added !== null) this.follow(added, publishing);
    return added;
  }

  #sayLeftOut(engine: string, objection: string | null): void {
    if (this.#leftOut.has(engine) || this.#leftOut.size >= GATEWAY_LEFT_OUT_MAX) return;
    this.#leftOut.add(engine);
    const { logger } = this.#options;
    const most = GATEWAY_ENGINES_MAX;
    if (objection !== null) logger.warn({ engine, reason: objection }, "an engine is left out");
    else logger.warn({ engine, most }, "an engine is left out: the gateway serves no more engines");
  }

  /** Removes an engine; its requests in flight are finished. */
  remove(engine: Engine): void {
    const { fleet, logger, onGone } = this.#options;
    this.#park(engine);
    onGone(engine);
    fleet.remove(engine).catch((error: unknown) => logger.warn({ err: error }, "an engine left"));
  }

  close(): Promise<void> {
    for (const engine of this.#followed.keys()) this.#unfollow(engine);
    for (const { members, timer } of this.#parked.values()) {
      clearTimeout(timer);
      for (const member of members) member.close();
    }
    this.#parked.clear();
    return Promise.resolve();
  }
}

const keyOf = ({ events, replays }: Publishing): string => `${events} ${replays}`;

function portPlus(address: string, rank: number): string {
  const { host, port } = splitAddress(address);
  return `${host.includes(":") ? `[${host}]` : host}:${port + rank}`;
}
