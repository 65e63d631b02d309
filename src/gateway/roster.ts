// Owns which engines exist while the gateway runs, each with its event feed, from adding to removal.
import { GATEWAY_ENGINES_MAX, GATEWAY_LEFT_OUT_MAX } from "../limits/gateway.ts";
import type { Logger } from "../log.ts";
import type { Publishing } from "./engines/discovery.ts";
import type { Engine } from "./engines/engine.ts";
import type { Fleet } from "./engines/fleet.ts";
import { EventFeed } from "./events/feed.ts";
import { Agreement } from "./hashes/agreement.ts";
import type { BlockIndex } from "./index/index-of-blocks.ts";
import type { Followed, Loaded } from "./index/saved-index.ts";

export interface RosterOptions {
  fleet: Fleet;
  index: BlockIndex;
  /** Index that an earlier gateway saved; each engine's part is used once. */
  saved: Loaded | null;
  logger: Logger;
  onGone(engine: Engine): void;
}

const NOWHERE: Publishing = { events: null, replays: null };

export class Roster {
  readonly #options: RosterOptions;
  readonly #followed = new Map<Engine, { feed: EventFeed; agreement: Agreement }>();
  /** Engines that were left out, and logged; discovery offers them again and again. */
  readonly #leftOut = new Set<string>();

  constructor(options: RosterOptions) {
    this.#options = options;
  }

  /** null: the engine publishes no events to the gateway. */
  feedOf(engine: Engine): EventFeed | null {
    return this.#followed.get(engine)?.feed ?? null;
  }

  /** Whether its block hashes can be computed here; null: the engine publishes no events to the gateway. */
  agreementOf(engine: Engine): Agreement | null {
    return this.#followed.get(engine)?.agreement ?? null;
  }

  /** Returns the engines whose events are complete, with the last batch applied. */
  followed(): Followed[] {
    return [...this.#followed].flatMap(
      ([
        { slot },
        {
          feed: { mark, events },
        },
      ]) => (mark === null ? [] : [{ slot, events, mark }]),
    );
  }

  /** Follows events at a new address; reports from the old one no longer count. */
  follow(engine: Engine, { events, replays }: Publishing): void {
    this.#unfollow(engine);
    if (events === null) return;
    const { index, saved, logger } = this.#options;
    const { slot } = engine;
    const known = replays === null ? undefined : saved?.engines.get(events);
    saved?.engines.delete(events);
    if (known !== undefined) index.restore(slot, known);
    const agreement = new Agreement(engine.name, logger);
    const feed = new EventFeed({
      events,
      replays,
      resume: known?.mark ?? null,
      logger,
      sink: {
        apply(event) {
          engine.signs += 1;
          index.apply(slot, event);
          agreement.hear(event);
        },
        clear() {
          index.clear(slot);
          agreement.forget();
        },
        trust(isTrusted) {
          engine.hasEvents = isTrusted;
          index.trust(slot, isTrusted);
        },
      },
    });
    this.#followed.set(engine, { feed, agreement });
    feed.start();
  }

  #unfollow(engine: Engine): void {
    const feed = this.feedOf(engine);
    if (feed === null) return;
    feed.close();
    this.#followed.delete(engine);
    const { index } = this.#options;
    engine.hasEvents = false;
    index.trust(engine.slot, false);
    index.clear(engine.slot);
  }

  /** null: there is no such engine. */
  find(name: string, id: string = name): Engine | null {
    const { fleet } = this.#options;
    return fleet.engines.find((engine) => engine.name === name && engine.id === id) ?? null;
  }

  /** Adds an engine, or returns the one already there; null: no room for one more. */
  add(name: string, id: string = name, publishing: Publishing = NOWHERE): Engine | null {
    const { fleet } = this.#options;
    const engine = this.find(name, id);
    if (engine !== null) return engine;
    const added = fleet.add(name, id);
    if (added === null) this.#sayLeftOut(name);
    else this.#leftOut.delete(name);
    if (added !== null) this.follow(added, publishing);
    return added;
  }

  #sayLeftOut(engine: string): void {
    if (this.#leftOut.has(engine) || this.#leftOut.size >= GATEWAY_LEFT_OUT_MAX) return;
    this.#leftOut.add(engine);
    const { logger } = this.#options;
    const most = GATEWAY_ENGINES_MAX;
    logger.warn({ engine, most }, "an engine is left out: the gateway has as many as it can serve");
  }

  /** Removes an engine; its requests in flight are finished. */
  remove(engine: Engine): void {
    const { fleet, logger, onGone } = this.#options;
    this.#unfollow(engine);
    onGone(engine);
    fleet.remove(engine).catch((error: unknown) => logger.warn({ err: error }, "an engine left"));
  }

  close(): Promise<void> {
    for (const { feed } of this.#followed.values()) feed.close();
    return Promise.resolve();
  }
}
