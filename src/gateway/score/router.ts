// Owns the decision for one request: which tokens it has, which engines hold them, and the order of engines that follows.
import type { Preset } from "../../config/config.ts";
import type { Engine } from "../engines/engine.ts";
import type { Fleet, Order } from "../engines/fleet.ts";
import { namesOf } from "../index/chain.ts";
import type { BlockName } from "../index/chain.ts";
import type { BlockIndex } from "../index/index-of-blocks.ts";
import { promptOf } from "../tokens/tokenizer.ts";
import type { Prompt, Tokenizer } from "../tokens/tokenizer.ts";
import { Pace } from "./pace.ts";
import type { Computing } from "./pace.ts";
import { leastLoad, prefixWeighted, roundRobin, soonest } from "./presets.ts";
import { SessionRing } from "./ring.ts";

/** What of a request the decision stands on. */
export interface Asked {
  path: string;
  /** The body, parsed; null: it is no JSON. */
  body: unknown;
  model: string | null;
  /** null: nothing names one. */
  session: string | null;
}

/** A request at one engine. */
export interface Sent {
  /** The first byte of the answer came. */
  begun(isStream: boolean): void;
  ended(): void;
  /** For the answer's headers. */
  receipt: Readonly<Record<string, string>>;
}

/** How one request chooses, and what is to be known once it has. */
export interface Choice {
  order: Order;
  send(engine: Engine): Sent;
}

export interface RouterOptions {
  preset: Preset;
  fleet: Fleet;
  index: BlockIndex;
  tokenizer: Tokenizer;
}

interface Known {
  tokens: number;
  /** Of the prompt, from the first on, by engine. */
  hits: ReadonlyMap<Engine, number>;
  /** By the size of a block. */
  names: ReadonlyMap<number, readonly BlockName[]>;
}

const NOTHING: Known = { tokens: 0, hits: new Map(), names: new Map() };

export class Router {
  readonly #options: RouterOptions;
  readonly #turns = roundRobin();
  readonly #ring: SessionRing;
  readonly #paces: ReadonlyMap<Engine, Pace>;

  constructor(options: RouterOptions) {
    this.#options = options;
    this.#ring = new SessionRing(options.fleet.engines);
    this.#paces = new Map(options.fleet.engines.map((engine) => [engine, new Pace()]));
  }

  async choose(asked: Asked): Promise<Choice> {
    const { preset } = this.#options;
    const looks = preset === "earliest-token" || preset === "prefix-weighted";
    const known = looks ? await this.#know(asked) : NOTHING;
    return {
      order: this.#orderOf(known, asked.session),
      send: (engine) => this.#send(engine, known),
    };
  }

  #orderOf(known: Known, session: string | null): Order {
    const { preset } = this.#options;
    switch (preset) {
      case "round-robin":
        return this.#turns;
      case "least-load":
        return leastLoad;
      case "ring":
        return session === null ? leastLoad : this.#ring.orderOf(session);
      case "prefix-weighted":
        return known.tokens === 0
          ? leastLoad
          : prefixWeighted((engine) => (known.hits.get(engine) ?? 0) / known.tokens);
      case "earliest-token":
        return soonest(
          (engine) => this.#costMs(engine, known),
          (engine) => known.hits.get(engine) ?? 0,
        );
      default:
        return preset satisfies never;
    }
  }

  /**
   * What sending it there costs: its own time to the first token, and that of those that will wait behind it, as many as
   * wait now on average. A busy fleet so spares work, where each request alone would flee to the shortest queue.
   */
  #costMs(engine: Engine, known: Known): number {
    const pace = this.#paces.get(engine);
    if (pace === undefined) return 0;
    let prompts = 0;
    for (const each of this.#paces.values()) prompts += each.prompts;
    const behind = prompts / this.#paces.size;
    const computeMs = pace.computeMs(known.hits.get(engine) ?? 0, known.tokens);
    return pace.queueMs() + computeMs * (1 + behind);
  }

  #predictMs(engine: Engine, { tokens, hits }: Known): number {
    const pace = this.#paces.get(engine);
    if (pace === undefined) return 0;
    return pace.queueMs() + pace.computeMs(hits.get(engine) ?? 0, tokens);
  }

  #send(engine: Engine, known: Known): Sent {
    const { preset, fleet, index } = this.#options;
    const at = fleet.engines.indexOf(engine);
    const hit = known.hits.get(engine) ?? 0;
    const predictedMs = this.#predictMs(engine, known);
    const size = index.blockSize(at);
    if (size !== null) index.guess(at, known.names.get(size) ?? []);
    const pace = this.#paces.get(engine);
    const computing: Computing | undefined =
      known.tokens === 0 ? undefined : pace?.sent(hit, known.tokens);
    const told = {
      "x-tierkv-hit-tokens": `${hit}/${known.tokens}`,
      "x-tierkv-predicted-ttft-ms": predictedMs.toFixed(1),
    };
    return {
      begun: (isStream) => computing && pace?.begun(computing, isStream),
      ended: () => computing && pace?.left(computing),
      receipt: { "x-tierkv-preset": preset, ...(computing === undefined ? {} : told) },
    };
  }

  async #know({ path, body, model }: Asked): Promise<Known> {
    const prompt = promptOf(path, body);
    if (prompt === null || model === null) return NOTHING;
    const { fleet, tokenizer } = this.#options;
    const [asker] = leastLoad(fleet.engines.filter((engine) => engine.takes(model)));
    if (asker === undefined) return NOTHING;
    const tokens = await tokenizer.tokensOf(prompt, asker);
    return tokens === null ? NOTHING : this.#held(prompt, tokens, asker);
  }

  #held(prompt: Prompt, tokens: readonly number[], asker: Engine): Known {
    const { fleet, index } = this.#options;
    const adapter = asker.models.find(
      ({ id, parent }) => id === prompt.model && typeof parent === "string",
    );
    const everywhere = adapter === undefined ? [] : [adapter.id];
    const names = new Map<number, readonly BlockName[]>();
    const hits = new Map<Engine, number>();
    for (const [at, engine] of fleet.engines.entries()) {
      const size = index.blockSize(at);
      if (size === null) continue;
      const own = names.get(size) ?? namesOf(tokens, size, everywhere, prompt.salt);
      if (!names.has(size)) names.set(size, own);
      hits.set(engine, 0);
    }
    for (const [size, own] of names) {
      for (const [at, blocks] of index.prefixes(own).entries()) {
        const engine = fleet.engines[at];
        // The last token is always computed, and with it its block.
        const most = Math.floor((tokens.length - 1) / size);
        if (engine !== undefined && index.blockSize(at) === size) {
          hits.set(engine, Math.min(blocks, most) * size);
        }
      }
    }
    return { tokens: tokens.length, hits, names };
  }
}

/** Which preset holds where none is named. */
export function presetOf(preset: Preset | null, hasEvents: boolean): Preset {
  return preset ?? (hasEvents ? "earliest-token" : "least-load");
}
