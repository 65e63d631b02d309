// Owns the knowledge of one prompt: its tokens, its block names, and how much each engine holds or can pull.
import type { Engine, Model } from "../engines/engine.ts";
import type { Fleet } from "../engines/fleet.ts";
import type { Agreement } from "../hashes/agreement.ts";
import type { Apart } from "../hashes/forms.ts";
import { namesOf } from "../index/chain.ts";
import type { BlockName } from "../index/chain.ts";
import type { BlockIndex } from "../index/index-of-blocks.ts";
import { promptOf } from "../tokens/prompt.ts";
import type { Prompt } from "../tokens/prompt.ts";
import type { Tokenizer } from "../tokens/tokenizer.ts";
import type { AskingEngine, Lookups } from "../vaults/lookups.ts";
import { leastLoad } from "./presets.ts";
import type { Span } from "./ttft-model.ts";

export interface KnowingOptions {
  fleet: Fleet;
  index: BlockIndex;
  tokenizer: Tokenizer;
  /** null: vaults are not asked. */
  lookups: Lookups | null;
  /** Returns null for an engine whose events are not followed. */
  roster: { agreementOf(engine: Engine): Agreement | null };
}

export interface Known {
  tokens: number;
  /** Tokens by the size of the request, where they are not known; 0 where they are. */
  estimate: number;
  /** Spans by engine; nothing is known to be held by an engine that is absent. */
  spans: ReadonlyMap<Engine, Span>;
  /** Block names, by block size. */
  names: ReadonlyMap<number, readonly BlockName[]>;
}

/** Bytes of a request for each token of its prompt, on average. */
const BYTES_PER_TOKEN = 4;

/** Nothing but the size of a request. */
export const unknown = (bytes: number): Known => ({
  tokens: 0,
  estimate: Math.ceil(bytes / BYTES_PER_TOKEN),
  spans: new Map(),
  names: new Map(),
});

export const spanAt = ({ tokens, estimate, spans }: Known, engine: Engine): Span =>
  spans.get(engine) ?? { tokens: tokens || estimate, held: 0, reach: 0 };

/** Adds the tokens handed over, which each of these engines can pull. */
export function reaching(known: Known, tokens: number, engines: readonly Engine[]): Known {
  const most = Math.min(tokens, known.tokens - 1);
  if (most <= 0) return known;
  const spans = engines.map((engine): [Engine, Span] => {
    const span = spanAt(known, engine);
    return [engine, { ...span, reach: Math.max(span.reach, most) }];
  });
  return { ...known, spans: new Map(spans) };
}

/** Tokens of a prompt that can be held: the last one is always computed, and with it its block. */
export const wholeBlocks = (tokens: number, size: number): number =>
  Math.floor((tokens - 1) / size) * size;

/** Fields of a request that determine its prompt. */
interface Asking {
  path: string;
  body: unknown;
  model: string | null;
  /** Bytes of the body without pictures and sounds. */
  bytes: number;
}

export class Knowing {
  readonly #options: KnowingOptions;

  constructor(options: KnowingOptions) {
    this.#options = options;
  }

  async know({ path, body, model, bytes }: Asking): Promise<Known> {
    const { fleet, tokenizer } = this.#options;
    const prompt = promptOf(path, body, model ?? onlyModel(fleet));
    if (prompt === null) return unknown(bytes);
    const [asker] = leastLoad(fleet.able(prompt.model));
    if (asker === undefined) return unknown(bytes);
    const tokens = await tokenizer.tokensOf(prompt, asker);
    if (tokens === null) return unknown(bytes);
    if (prompt.isComputed) return { ...unknown(0), tokens: tokens.length };
    const known = this.#held(prompt, tokens, asker);
    return (await this.#askVaults(prompt, tokens, known))
      ? this.#held(prompt, tokens, asker)
      : known;
  }

  #held(prompt: Prompt, tokens: readonly number[], asker: Engine): Known {
    const { fleet, index } = this.#options;
    const adapter = adapterOf(asker, prompt.model);
    const everywhere = adapter === undefined ? [] : [adapter.id];
    const names = new Map<number, readonly BlockName[]>();
    const spans = new Map<Engine, Span>();
    const sizeOf = ({ slot }: Engine): number | null => index.blockSize(slot);
    for (const size of new Set(fleet.engines.map(sizeOf))) {
      if (size === null) continue;
      const engines = fleet.engines.filter((engine) => sizeOf(engine) === size);
      const own = namesOf(index.seeds, tokens, size, everywhere, prompt.salt);
      names.set(size, own);
      const held = index.prefixes(own);
      // A block that one of these engines saved can be pulled by another, because size and model are the same.
      const peers = new Set(
        engines.filter((engine) => engine.serves(prompt.model)).map(({ slot }) => slot),
      );
      const reach = index.reach(own, held, peers);
      const most = wholeBlocks(tokens.length, size) / size;
      for (const engine of engines) {
        const tokensOf = (blocks = 0): number => Math.min(blocks, most) * size;
        spans.set(engine, {
          tokens: tokens.length,
          held: tokensOf(held[engine.slot]),
          reach: tokensOf(reach[engine.slot]),
        });
      }
    }
    return { tokens: tokens.length, estimate: 0, spans, names };
  }

  /** Returns true where more of the prompt is known to be held than before. */
  async #askVaults(prompt: Prompt, tokens: readonly number[], known: Known): Promise<boolean> {
    const { fleet, index, lookups } = this.#options;
    if (lookups === null) return false;
    const able = fleet.able(prompt.model);
    const asked = [...known.names].map(([blockSize, names]) => {
      const engines = able.filter(({ slot }) => index.blockSize(slot) === blockSize);
      const asking = engines.flatMap((engine) => this.#asking(engine, prompt, known));
      return lookups.ask({ tokens, blockSize, names, engines: asking });
    });
    return (await Promise.all(asked)).includes(true);
  }

  #asking(engine: Engine, { model, salt }: Prompt, known: Known): AskingEngine[] {
    const agreement = this.#options.roster.agreementOf(engine);
    if (agreement === null) return [];
    const adapter = adapterOf(engine, model);
    const apart: Apart = {
      adapter: adapter === undefined ? null : { name: adapter.id, path: pathOf(adapter) },
      salt,
    };
    const { held, reach } = spanAt(known, engine);
    return [{ slot: engine.slot, agreement, apart, held, reach }];
  }
}

/** The model that engines serve where a request names none; null: there are several. */
function onlyModel(fleet: Fleet): string | null {
  const models = fleet.models().filter(({ parent = null }) => parent === null);
  return models.length === 1 ? (models[0]?.id ?? null) : null;
}

const pathOf = ({ root }: Model): string => (typeof root === "string" ? root : "");

/** undefined: the model is no adapter. */
const adapterOf = ({ models }: Engine, model: string): Model | undefined =>
  models.find(({ id, parent }) => id === model && typeof parent === "string");
