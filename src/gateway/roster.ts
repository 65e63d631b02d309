// Owns which engines there are while the gateway runs: each with the events it publishes, from its coming to its going.
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
  /** What an earlier gateway knew; each engine's part is taken once. */
  saved: Loaded | null;
  logger: Logger;
  onGone(engine: Engine): void;
}

const NOWHERE: Publishing = { events: null, replays: null };

export class Roster {
  readonly #options: RosterOptions;
  readonly #followed = new Map<Engine, { feed: EventFeed; agreement: Agreement }>();
  #isFullSaid = false;

  constructor(options: RosterOptions) {
    this.#options = options;
  }

  /** null: it publishes nothing to us. */
  feedOf(engine: Engine): EventFeed | null {
    return this.#followed.get(engine)?.feed ?? null;
  }

  /** Whether its hashes can be made here; null: it publishes nothing to us. */
  agreementOf(engine: Engine): Agreement | null {
    return this.#followed.get(engine)?.agreement ?? null;
  }

  /** Engines of whose events nothing is missing, up to where they are known. */
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

  /** From now on there: what it told elsewhere counts no more. */
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
          index.apply(slot, event);
          agreement.hear(event);
        },
        clear() {
          index.clear(slot);
          agreement.forget();
        },
        trust: (isTrusted) => index.trust(slot, isTrusted),
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
    index.trust(engine.slot, false);
    index.clear(engine.slot);
  }

  /** null: it is not there. */
  find(name: string, id: string = name): Engine | null {
    const { fleet } = this.#options;
    return fleet.engines.find((engine) => engine.name === name && engine.id === id) ?? null;
  }

  /** null: there is no room for one more. One that is there already is taken as it is. */
  add(name: string, id: string = name, publishing: Publishing = NOWHERE): Engine | null {
    const { fleet, logger } = this.#options;
    const engine = this.find(name, id);
    if (engine !== null) return engine;
    const added = fleet.add(name, id);
    // Once: whoever is found is told of again and again.
    if (added === null && !this.#isFullSaid)
      logger.warn({ engine: name }, "no room for one more engine");
    this.#isFullSaid = added === null;
    if (added !== null) this.follow(added, publishing);
    return added;
  }

  /** What it has is finished. */
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
