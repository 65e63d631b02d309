// Owns the choice for `[codec] kv = "auto"`: per vault the codec that restores soonest, lossy only where the model is certified and that gains.
import type { RecordClass } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import {
  CHANGE_TIME_SHARE,
  EXACT_TIME_SHARE,
  NAMESPACES_KNOWN_MAX,
  WEIGHED_BLOCKS,
  WEIGHED_GROUPS_MAX,
} from "../../base/limits/codec.ts";
import type { Logger } from "../../base/log.ts";
import type { ArenaId, CodecWeight, GeometryId } from "../../base/native.ts";
import type { EncodePool } from "../../codec/pool.ts";
import { codecId, codecNameOf, isExact } from "./codecs.ts";
import type { CodecName, Codecs } from "./codecs.ts";
import type { VaultView } from "./vault-view.ts";

/** Costs of a codec per decoded byte. */
export interface Weight {
  /** Bytes on the wire. */
  bytes: number;
  /** Seconds of one thread to decode. */
  decodeS: number;
}

export type Weights = ReadonlyMap<CodecName, Weight>;

/** Why a codec was chosen. */
export type CodecWhy = "unweighed" | "unmeasured" | "full" | "exact" | "sooner";

/** The form of blocks for one vault. */
export interface Form {
  /** Name of the codec. */
  codec: CodecName;
  /** Reason: `unweighed` (no block was measured yet), `unmeasured` (the link), `full` (the vault is more than half full), `exact` (the exact form takes little longer), `sooner` (restores fastest). */
  why: CodecWhy;
  /** Rate of the link at the choice; null: not measured. */
  bytesPerS: number | null;
}

type Seen = Pick<VaultView, "restoreRate" | "isNearlyFull" | "isMemory">;

/** Chooses the form for one vault; `last`: the codec chosen before. */
export function chooseForm(
  { candidates, kvName, threads }: ChoiceRules,
  weights: Weights | undefined,
  { restoreRate, isNearlyFull, isMemory }: Seen,
  last?: CodecName,
): Form {
  const bytesPerS = restoreRate;
  const offered = candidates.flatMap((codec) => {
    const weight = weights?.get(codec);
    if (weight === undefined) return [];
    const wireS = bytesPerS === null ? 0 : weight.bytes / Math.max(1, bytesPerS);
    const s = (wireS + weight.decodeS / threads) * (codec === last ? CHANGE_TIME_SHARE : 1);
    return [{ codec, bytes: weight.bytes, s }];
  });
  type Offer = (typeof offered)[number];
  const least = (of: readonly Offer[], by: "bytes" | "s"): Offer | undefined =>
    of.toSorted((a, b) => a[by] - b[by])[0];
  const smallest = least(offered, "bytes");
  if (smallest === undefined) return { codec: kvName, why: "unweighed", bytesPerS };
  if (bytesPerS === null && !isMemory) {
    return { codec: smallest.codec, why: "unmeasured", bytesPerS };
  }
  if (isNearlyFull) return { codec: smallest.codec, why: "full", bytesPerS };
  const exact = least(
    offered.filter(({ codec }) => isExact(codec)),
    "s",
  );
  const soonest = least(offered, "s") ?? smallest;
  const isWorth = exact === undefined || soonest.s <= exact.s * EXACT_TIME_SHARE;
  return isWorth
    ? { codec: soonest.codec, why: "sooner", bytesPerS }
    : { codec: exact.codec, why: "exact", bytesPerS };
}

export interface ChoiceRules extends Pick<Codecs, "candidates" | "kvName"> {
  /** Threads that decode at once. */
  threads: number;
}

/** A leased slot with a block. */
export interface WeighedSlot {
  arena: ArenaId;
  geometry: GeometryId;
  slot: number;
  generation: number;
  sourceBytes: number;
}

interface Weighed {
  blocks: number;
  weights: Map<CodecName, Weight>;
}

const newlyWeighed = (): Weighed => ({ blocks: 0, weights: new Map() });

export class CodecChoice {
  /** Codecs of engines that are not identified. */
  readonly #codecs: Codecs;
  readonly #threads: number;
  readonly #logger: Logger;
  /** Codecs by namespace, the latest last. */
  readonly #named = new Map<string, Codecs>();
  /** Weights by geometry. */
  readonly #weighed = new Map<number, Weighed>();
  /** Last choice by vault address. */
  readonly #forms = new Map<string, Form>();

  constructor(
    codecs: Codecs,
    { logger, threads }: Pick<ChoiceRules, "threads"> & { logger: Logger },
  ) {
    this.#logger = logger;
    this.#codecs = codecs;
    this.#threads = threads;
  }

  /** Notes the codecs of an engine that has named itself. */
  name(namespace: Buffer, codecs: Codecs): void {
    const name = namespace.toString("latin1");
    this.#named.delete(name);
    this.#named.set(name, codecs);
    const [oldest] = this.#named.keys();
    if (this.#named.size > NAMESPACES_KNOWN_MAX && oldest !== undefined) this.#named.delete(oldest);
  }

  /** Returns the fidelity that is part of this namespace. */
  fidelityOf(namespace: Buffer): number {
    return this.#of(namespace).fidelity;
  }

  /** True where blocks of this class may have been decoded from a lossy record. */
  isLossy(namespace: Buffer, recordClass: RecordClass): boolean {
    return recordClass === "kv" && this.fidelityOf(namespace) !== 0;
  }

  #of(namespace: Buffer): Codecs {
    return this.#named.get(namespace.toString("latin1")) ?? this.#codecs;
  }

  /** Returns the codec for a namespace's blocks that go to all of these vaults: the smallest of their choices. */
  idFor(
    namespace: Buffer,
    recordClass: RecordClass,
    geometry: GeometryId,
    views: readonly VaultView[],
  ): number {
    const codecs = this.#of(namespace);
    const { byClass, candidates } = codecs;
    if (recordClass !== "kv" || candidates.length === 0) return byClass[recordClass];
    const rules = { ...codecs, threads: this.#threads };
    const weights = this.#weighed.get(geometry)?.weights;
    const forms = views.map((view) => {
      const form = chooseForm(rules, weights, view, this.#forms.get(view.address)?.codec);
      this.#forms.set(view.address, form);
      return form;
    });
    const bytes = ({ codec }: Form): number => weights?.get(codec)?.bytes ?? 0;
    const [smallest] = forms.toSorted((a, b) => bytes(a) - bytes(b));
    return smallest === undefined ? byClass.kv : codecId(smallest.codec);
  }

  /** As `idFor`, of blocks that were restored: a record of a lossy codec is never coded again, so its decoded bytes stay exact. */
  idForRestored(
    namespace: Buffer,
    recordClass: RecordClass,
    geometry: GeometryId,
    views: readonly VaultView[],
  ): number {
    const codec = codecId("lossless");
    return this.isLossy(namespace, recordClass)
      ? codec
      : this.idFor(namespace, recordClass, geometry, views);
  }

  /** Tries the codecs on one of a group's first blocks. Never rejects; after a failure the next block is tried. */
  async weigh(
    pool: EncodePool,
    namespace: Buffer,
    recordClass: RecordClass,
    block: WeighedSlot,
  ): Promise<void> {
    const { candidates } = this.#of(namespace);
    if (recordClass !== "kv" || candidates.length === 0) return;
    const known = this.#weighed.get(block.geometry) ?? newlyWeighed();
    if (known.blocks >= WEIGHED_BLOCKS) return;
    this.#weighed.set(block.geometry, known);
    known.blocks += 1;
    try {
      const { arena, geometry, slot, generation, sourceBytes } = block;
      const codecs = candidates.map(codecId);
      const found = await pool.weigh({ arena, geometry, slot, generation, codecs });
      for (const weight of found) learn(known.weights, weight, sourceBytes);
    } catch (error) {
      known.blocks -= 1;
      this.#logger.warn({ err: toTierkvError(error) }, "the codecs could not be measured");
    }
    const [oldest] = this.#weighed.keys();
    if (this.#weighed.size > WEIGHED_GROUPS_MAX && oldest !== undefined)
      this.#weighed.delete(oldest);
  }

  /** Returns the form of a vault's blocks; null: none went there. */
  formOf(address: string): Form | null {
    return this.#forms.get(address) ?? null;
  }

  /** Names of the codecs in use. */
  get names(): string {
    const names = [...new Set([...this.#forms.values()].map(({ codec }) => codec))];
    return names.length === 0 ? this.#codecs.kvName : names.join(", ");
  }
}

/** Keeps the largest size over several blocks, and the quickest decode, because a thread may have waited. */
function learn(
  weights: Map<CodecName, Weight>,
  { codec, bytes, decodeS }: CodecWeight,
  sourceBytes: number,
): void {
  const name = codecNameOf(codec);
  if (name === null || sourceBytes <= 0) return;
  const old = weights.get(name);
  weights.set(name, {
    bytes: Math.max(old?.bytes ?? 0, bytes / sourceBytes),
    decodeS: Math.min(old?.decodeS ?? Number.POSITIVE_INFINITY, decodeS / sourceBytes),
  });
}
