// Owns the knowledge of one prompt: its tokens, its blocks as engines hash them, and how much each engine holds or can pull.
import type { Logger } from "../../base/log.ts";
import { tenantOf } from "../../base/tenant.ts";
import type { Engine, Model } from "../engines/engine.ts";
import type { Fleet } from "../engines/fleet.ts";
import { hashesOf } from "../hashes/forms.ts";
import type { Apart, Base, Tagging } from "../hashes/forms.ts";
import { namesOf } from "../index/index-of-blocks.ts";
import type { BlockIndex, Tokens, View } from "../index/index-of-blocks.ts";
import type { Member } from "../members/member.ts";
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
  /** Knows the engines' members in the index. */
  roster: { membersOf(engine: Engine): readonly Member[] };
  logger: Logger;
}

/** Share of one member of an engine of a prompt. */
export interface Part {
  member: Member;
  span: Span;
  view: View;
}

export interface Known {
  tokens: number;
  /** Tokens by the size of the request, where they are not known; 0 where they are. */
  estimate: number;
  /** Whether engines compute it whole, whatever they or vaults hold. */
  isComputed: boolean;
  /** Spans by engine, of its best member; nothing is known to be held by an engine that is absent. */
  spans: ReadonlyMap<Engine, Span>;
  /** By engine; several where it has data-parallel ranks. */
  parts: ReadonlyMap<Engine, readonly Part[]>;
}

/** Bytes of a request for each token of its prompt, on average. */
const BYTES_PER_TOKEN = 4;

/** Nothing but the size of a request. */
export const unknown = (bytes: number): Known => ({
  tokens: 0,
  estimate: Math.ceil(bytes / BYTES_PER_TOKEN),
  isComputed: false,
  spans: new Map(),
  parts: new Map(),
});

export const spanAt = ({ tokens, estimate, spans }: Known, engine: Engine): Span =>
  spans.get(engine) ?? { tokens: tokens || estimate, held: 0, reach: 0 };

/** Returns the member that computes the prompt first: what it lacks, behind what waits there. */
export function memberFor({ parts }: Known, engine: Engine): Part | null {
  const all = parts.get(engine) ?? [];
  const workOf = ({ member, span }: Part): number => member.waiting + span.tokens - span.held;
  return all.reduce<Part | null>(
    (best, each) => (best === null || workOf(each) < workOf(best) ? each : best),
    null,
  );
}

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

/** Members for which a prompt's blocks have the same names. */
interface Group {
  /** null: the index's own names. */
  form: readonly [Base, Tagging] | null;
  unit: number;
  apart: Apart;
  members: { engine: Engine; member: Member }[];
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
    if (prompt.isComputed) return { ...unknown(0), tokens: tokens.length, isComputed: true };
    const groups = this.#groups(prompt, tokens);
    const views = await Promise.all(groups.map((group) => viewOf(group, tokens)));
    const known = this.#held(prompt, tokens.length, groups, views);
    return (await this.#askVaults(prompt, groups, views, known))
      ? this.#held(prompt, tokens.length, groups, views)
      : known;
  }

  /** Engines that hash alike share the hashing. */
  #groups(prompt: Prompt, tokens: Tokens): Group[] {
    const { fleet, index, roster } = this.#options;
    const groups = new Map<string, Group>();
    for (const engine of fleet.engines) {
      const apart = apartAt(engine, prompt);
      for (const member of roster.membersOf(engine)) {
        const unit = index.blockSize(member.holder);
        if (unit === null) continue;
        if (engine.takes(prompt.model)) this.#expect(member, apart, tokens, unit);
        const form = member.agreement?.formFor(apart) ?? null;
        const key = keyOf(form, unit, apart);
        const known = groups.get(key) ?? { form, unit, apart, members: [] };
        known.members.push({ engine, member });
        groups.set(key, known);
      }
    }
    return [...groups.values()];
  }

  /** Announces the prompt to an agreement, because an engine whose form is still learnt will soon report its hashes. */
  #expect({ agreement }: Member, apart: Apart, tokens: Tokens, unit: number): void {
    if (agreement?.state !== "learning" || apart.adapter !== null || apart.salt !== null) return;
    agreement.expect(tokens, unit).catch((error: unknown) => {
      this.#options.logger.warn({ err: error }, "hashes of a prompt cannot be computed");
    });
  }

  #held(
    { model }: Prompt,
    tokens: number,
    groups: readonly Group[],
    views: readonly View[],
  ): Known {
    const { index } = this.#options;
    const spans = new Map<Engine, Span>();
    const parts = new Map<Engine, Part[]>();
    for (const [at, { members }] of groups.entries()) {
      const view = views[at];
      if (view === undefined) continue;
      // A block that one of these engines saved can be pulled by another, because its hash and the model are the same.
      const peers = members.filter(({ engine }) => engine.serves(model));
      const holders = members.map(({ member }) => member.holder);
      const found = index.spans(
        holders,
        peers.map(({ member }) => member.holder),
        view,
      );
      for (const [n, { engine, member }] of members.entries()) {
        const { held = 0, reach = 0 } = found[n] ?? {};
        const span = { tokens, held, reach };
        parts.set(engine, [...(parts.get(engine) ?? []), { member, span, view }]);
        if (held >= (spans.get(engine)?.held ?? 0)) spans.set(engine, span);
      }
    }
    return { tokens, estimate: 0, isComputed: false, spans, parts };
  }

  /** Returns true where more of the prompt is known to be held than before. */
  async #askVaults(
    prompt: Prompt,
    groups: readonly Group[],
    views: readonly View[],
    known: Known,
  ): Promise<boolean> {
    const { fleet, lookups } = this.#options;
    if (lookups === null) return false;
    const able = new Set(fleet.able(prompt.model));
    const units = new Map<number, AskingEngine[]>();
    for (const [at, { members, unit, form }] of groups.entries()) {
      const view = views[at];
      if (view === undefined || form === null) continue;
      for (const { engine, member } of members) {
        if (!able.has(engine) || member.agreement === null) continue;
        const { held, reach } = spanAt(known, engine);
        const { holder, agreement } = member;
        const asking = { holder, agreement, hashes: view.blocks, held, reach };
        units.set(unit, [...(units.get(unit) ?? []), asking]);
      }
    }
    const tenant = tenantOf(prompt.salt ?? "");
    const asked = [...units].map(([blockSize, engines]) =>
      lookups.ask({ tokens: known.tokens, tenant, blockSize, engines }),
    );
    return (await Promise.all(asked)).includes(true);
  }
}

async function viewOf({ form, unit, apart }: Group, tokens: Tokens): Promise<View> {
  if (form === null) {
    return namesOf(tokens, unit, apart.adapter === null ? [] : [apart.adapter.name], apart.salt);
  }
  const [base, tagging] = form;
  const blocks = await hashesOf(base, tokens, unit, [apart, tagging]);
  return { blocks, areNames: false, unit, tokens: tokens.length };
}

function keyOf(form: Group["form"], unit: number, { adapter }: Apart): string {
  if (form === null) return `${unit} ${adapter?.name}`;
  const [{ algorithm, root }, tagging] = form;
  const of = [algorithm, root.toString("latin1"), tagging, adapter?.name, adapter?.path];
  return `${unit} ${of.join(" ")}`;
}

/** The model that engines serve where a request names none; null: there are several. */
function onlyModel(fleet: Fleet): string | null {
  const models = fleet.models().filter(({ parent = null }) => parent === null);
  return models.length === 1 ? (models[0]?.id ?? null) : null;
}

/** An adapter's path enters the hashes of newer releases. */
function apartAt({ models }: Engine, { model, salt }: Prompt): Apart {
  const adapter = models.find(({ id, parent }) => id === model && typeof parent === "string");
  if (adapter === undefined) return { adapter: null, salt };
  return { adapter: { name: adapter.id, path: pathOf(adapter) }, salt };
}

const pathOf = ({ root }: Model): string => (typeof root === "string" ? root : "");
