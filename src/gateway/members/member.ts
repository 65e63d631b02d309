// Owns one member of an engine in the index: the engine itself, or one of its data-parallel ranks, with its events and hashes.
import type { Logger } from "../../base/log.ts";
import type { Publishing } from "../engines/discovery.ts";
import type { Engine } from "../engines/engine.ts";
import { EventFeed } from "../events/feed.ts";
import type { Failure } from "../events/feed.ts";
import { Agreement } from "../hashes/agreement.ts";
import type { BlockIndex } from "../index/index-of-blocks.ts";
import type { Followed, Saved } from "./saved-index.ts";

export interface MemberOptions {
  engine: Engine;
  publishing: Publishing;
  /** null: the engine has no ranks. */
  rank: number | null;
  index: BlockIndex;
  /** Knowledge of an earlier gateway; null: none. */
  saved: Saved | null;
  logger: Logger;
}

/** Has a number in the index until closed. */
export class Member {
  readonly publishing: Publishing;
  /** Number in the index. */
  readonly holder: number;
  /** null: no events come. */
  readonly feed: EventFeed | null;
  /** null: no events come. */
  readonly agreement: Agreement | null;
  rank: number | null;
  /** Tokens of prompts sent there that are not computed yet. */
  waiting = 0;
  readonly #index: BlockIndex;
  #engine: Engine;
  #isTrusted = false;

  constructor({ engine, publishing, rank, index, saved, logger }: MemberOptions) {
    const { events, replays } = publishing;
    this.#engine = engine;
    this.publishing = publishing;
    this.rank = rank;
    this.#index = index;
    this.holder = index.add();
    if (events === null) {
      this.feed = null;
      this.agreement = null;
      return;
    }
    const { holder } = this;
    const agreement = new Agreement(engine.name, logger, index, holder);
    const isKnown = replays !== null && saved !== null && index.load(holder, saved.blocks);
    if (isKnown && saved.form !== null) agreement.resume(saved.form);
    this.agreement = agreement;
    this.feed = new EventFeed({
      events,
      replays,
      resume: isKnown ? saved.mark : null,
      logger,
      sink: {
        apply: (payload): Failure | null => {
          this.#engine.noteSign();
          const report = index.apply(holder, payload);
          if (report?.lost === undefined && report !== null) agreement.hear(report);
          return report;
        },
        clear() {
          index.clear(holder);
          agreement.forget();
        },
        trust: (isTrusted) => {
          this.#trust(isTrusted);
          index.trust(holder, isTrusted);
        },
      },
    });
  }

  /** Counts for an engine of the same process, which left and came back. */
  adopt(engine: Engine): void {
    const wasTrusted = this.#isTrusted;
    this.#trust(false);
    this.#engine = engine;
    this.#trust(wasTrusted);
  }

  /** Whether its events come, or may come. */
  get isFollowed(): boolean {
    return this.feed !== null;
  }

  start(): void {
    this.feed?.start();
  }

  /** null: its events are not complete, or cannot be resumed. */
  followed(): Followed | null {
    const mark = this.feed?.mark ?? null;
    const { events } = this.publishing;
    if (mark === null || events === null) return null;
    return { holder: this.holder, events, mark, form: this.agreement?.save() ?? null };
  }

  close(): void {
    this.feed?.close();
    this.#trust(false);
    this.#index.remove(this.holder);
  }

  #trust(isTrusted: boolean): void {
    if (isTrusted !== this.#isTrusted) this.#engine.publishers += isTrusted ? 1 : -1;
    this.#isTrusted = isTrusted;
  }
}
