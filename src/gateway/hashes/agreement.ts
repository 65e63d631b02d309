// Owns whether the gateway can compute one engine's block hashes: learned from its events, rechecked, and given up at the first difference.
import { NAMESPACE_BYTES, toNamespace } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import {
  GATEWAY_HASH_CHECK_EVERY,
  GATEWAY_HASHES_EXPECT_MOST,
  GATEWAY_HASHES_EXPECT_MS,
} from "../../base/limits/gateway.ts";
import type { Logger } from "../../base/log.ts";
import type { IndexReport, IndexSample } from "../../base/native.ts";
import { nowMs } from "../../base/time.ts";
import type { BlockIndex } from "../index/index-of-blocks.ts";
import type { Tokens } from "../index/index-of-blocks.ts";
import {
  ALGORITHMS,
  DEFAULT_SEED,
  hashesOf,
  hashOfBlock,
  lowOf,
  NOT_APART,
  rootOf,
} from "./forms.ts";
import type { Algorithm, Apart, Base, Tagging } from "./forms.ts";

/** How vaults name an engine's blocks: one key per group and shard. */
export interface Named {
  namespace: Namespace;
  shards: number;
  /** Groups that hold a whole prefix. */
  groups: readonly number[];
}

/** `learning`: no event has shown the form yet; `off`: one showed another hash. */
export type AgreementState = "learning" | "agreed" | "off";

/** How an engine hashes; `tagging` is null until an event with a salt or an adapter has shown it. */
interface Form {
  base: Base;
  tagging: Tagging | null;
}

/** A form as it is saved; the root as hexadecimal digits. */
export interface SavedForm {
  algorithm: Algorithm;
  root: string;
  tagging: Tagging | null;
}

const TAGGINGS: readonly Tagging[] = ["tagged", "bare"];

const usualBases: readonly Base[] = ALGORITHMS.map((algorithm) => ({
  algorithm,
  root: rootOf(algorithm, DEFAULT_SEED),
}));

export class Agreement {
  readonly #engine: string;
  readonly #logger: Logger;
  readonly #index: BlockIndex;
  readonly #holder: number;
  #form: Form | null = null;
  #isOff = false;
  #namespace: Namespace | null = null;
  #shards = 0;
  readonly #groups = new Set<number>();
  /** Root that the engine announced; null: none. */
  #root: Buffer | null = null;
  /** Bases of hashes expected of prompts on their way there, by their number in the index. */
  #expected: readonly Base[] = [];
  /** Prompts expected until that time; no more than a few, because an engine may never show its form. */
  #expectedLately = 0;
  #expectAgainMs = -Infinity;

  /** `holder`: number of the engine in the index, whose events are heard. */
  constructor(engine: string, logger: Logger, index: BlockIndex, holder: number) {
    this.#engine = engine;
    this.#logger = logger;
    this.#index = index;
    this.#holder = holder;
    this.#want();
  }

  get state(): AgreementState {
    return this.#isOff ? "off" : this.#form === null ? "learning" : "agreed";
  }

  /** Form for display; empty while it is not known. */
  get form(): string {
    if (this.#form === null) return "";
    const { base, tagging } = this.#form;
    return tagging === null ? base.algorithm : `${base.algorithm} ${tagging}`;
  }

  /** null: the engine has announced no name, or cannot reach vaults. */
  get named(): Named | null {
    if (this.#namespace === null) return null;
    return { namespace: this.#namespace, shards: this.#shards, groups: [...this.#groups] };
  }

  /** Returns null for a prompt whose hashes cannot be computed. */
  formFor({ adapter, salt }: Apart): readonly [Base, Tagging] | null {
    if (this.state !== "agreed" || this.#form === null) return null;
    const { base, tagging } = this.#form;
    if (adapter === null && salt === null) return [base, "bare"];
    return tagging === null ? null : [base, tagging];
  }

  /** Returns the form for the next gateway; null: it is not known. */
  save(): SavedForm | null {
    if (this.#form === null) return null;
    const { base, tagging } = this.#form;
    return { algorithm: base.algorithm, root: base.root.toString("hex"), tagging };
  }

  /** Takes the form that an earlier gateway had agreed on with this process of the engine. */
  resume({ algorithm, root, tagging }: SavedForm): void {
    this.#form = { base: { algorithm, root: Buffer.from(root, "hex") }, tagging };
    this.#want();
  }

  /** Forgets all, because another process may publish there now. */
  forget(): void {
    this.#form = null;
    this.#isOff = false;
    this.#root = null;
    this.#unname();
    this.#want();
  }

  /** Takes what a batch of the engine's events told besides blocks. */
  hear({ names, sample, met }: IndexReport): void {
    for (const name of names) this.#take(name);
    if (sample !== undefined && !this.#isOff) this.#look(sample);
    if (met !== undefined && this.state === "learning") {
      const base = this.#expected[met];
      if (base !== undefined) this.#agree(base);
    }
  }

  /** Expects the hashes of a prompt on its way there, because the engine may have reported the prompt's first blocks long ago. */
  async expect(tokens: Tokens, blockSize: number): Promise<void> {
    const now = nowMs();
    if (this.state !== "learning") return;
    if (now >= this.#expectAgainMs) {
      this.#expectAgainMs = now + GATEWAY_HASHES_EXPECT_MS;
      this.#expectedLately = 0;
    }
    if (this.#expectedLately >= GATEWAY_HASHES_EXPECT_MOST) return;
    this.#expectedLately += 1;
    const bases = this.#bases();
    const made = await Promise.all(
      bases.map((base) => hashesOf(base, tokens, blockSize, [NOT_APART, "bare"])),
    );
    if (this.state !== "learning") return;
    const isSame = bases.every((base, at) => this.#expected[at]?.root.equals(base.root) === true);
    if (!isSame) this.#want();
    this.#expected = bases;
    for (const [at, hashes] of made.entries()) this.#index.expect(this.#holder, at, hashes);
  }

  /** Returns the bases that are possible. */
  #bases(): Base[] {
    const root = this.#root;
    const told = root === null ? [] : ALGORITHMS.map((algorithm) => ({ algorithm, root }));
    return [...told, ...usualBases];
  }

  /** Tells the index what to show of the engine's events, and ends all expectations. */
  #want(): void {
    this.#expected = [];
    const form = this.#form;
    const every = this.#isOff ? 0 : form === null ? 1 : GATEWAY_HASH_CHECK_EVERY;
    const hasExtras = form !== null && form.tagging === null;
    this.#index.want(this.#holder, { hasNames: form === null, every, hasExtras });
  }

  #take({ group, namespace: name, shards, root }: IndexReport["names"][number]): void {
    if (name.length !== 2 * NAMESPACE_BYTES) return this.#unname();
    const namespace = toNamespace(Buffer.from(name, "hex"));
    const told = Buffer.from(root, "hex");
    if (this.#namespace?.equals(namespace) !== true) this.#unname();
    this.#namespace = namespace;
    this.#shards = shards;
    this.#groups.add(group);
    if (this.#root?.equals(told) === true) return;
    this.#root = told;
    if (this.#form?.base.root.equals(told) !== false) return;
    this.#form = null;
    this.#want();
  }

  #unname(): void {
    this.#namespace = null;
    this.#groups.clear();
  }

  #look(sample: IndexSample): void {
    const form = this.#form;
    const [first = []] = sample.extras;
    if (first.length > 0) {
      if (form?.tagging === null) this.#learnTagging(sample, form.base, first);
    } else if (form === null) this.#learn(sample);
    else if (!isMadeBy(sample, form.base)) this.#giveUp(form.base.algorithm);
  }

  /** Tries the first extra key as a salt. Events omit part of the hash input of pictures, and of adapters in newer releases. */
  #learnTagging(sample: IndexSample, base: Base, [salt = ""]: readonly string[]): void {
    const apart = { adapter: null, salt };
    const tagging = TAGGINGS.find((one) => isMadeBy(sample, base, [apart, one])) ?? null;
    if (tagging === null) return;
    this.#form = { base, tagging };
    this.#want();
  }

  #learn(sample: IndexSample): void {
    const base = this.#bases().find((one) => isMadeBy(sample, one));
    if (base !== undefined) this.#agree(base);
    // Without an announced root, the engine's root may be any.
    else if (this.#root !== null) this.#giveUp("its announced root");
  }

  #agree(base: Base): void {
    this.#form = { base, tagging: null };
    this.#want();
    const of = { engine: this.#engine, hashes: base.algorithm };
    this.#logger.info(of, "the gateway computes the block hashes of an engine itself");
  }

  #giveUp(form: string): void {
    this.#isOff = true;
    this.#form = null;
    this.#want();
    const fix =
      "its blocks in vaults are known only from its events; start it with --prefix-caching-hash-algo sha256_cbor";
    const reason = "its block hashes differ from those that the gateway computes";
    const about = { engine: this.#engine, form, reason, fix };
    this.#logger.warn(about, "vaults are not asked for prompts of an engine");
  }
}

/** Whether the first blocks of a prompt have the hashes that the engine reported. */
function isMadeBy(
  { blockSize, lows, tokens, extras }: IndexSample,
  base: Base,
  [apart, tagging]: readonly [Apart, Tagging] = [NOT_APART, "bare"],
): boolean {
  let parent = base.root;
  const all = [...tokens];
  for (const [at, extra] of extras.entries()) {
    if (at > 0 && extra.length > 0) return true;
    const range = [at * blockSize, (at + 1) * blockSize] as const;
    const made = hashOfBlock(base, parent, all, range, [apart, at === 0, tagging]);
    if (made === null || lowOf(made) !== lows.readBigUInt64LE(8 * at)) return false;
    parent = made;
  }
  return true;
}
