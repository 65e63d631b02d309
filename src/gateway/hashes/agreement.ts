// Owns whether the gateway can compute one engine's block hashes: learned from its events, rechecked, and given up at the first difference.
import { HASH_BYTES, toNamespace } from "../../block.ts";
import type { Namespace } from "../../block.ts";
import {
  GATEWAY_HASH_CHECK_EVERY,
  GATEWAY_HASHES_CHECKED,
  GATEWAY_HASHES_EXPECT_MS,
  GATEWAY_HASHES_EXPECTED_MAX,
} from "../../limits/gateway.ts";
import type { Logger } from "../../log.ts";
import { nowMs } from "../../time.ts";
import type { KvEvent, VaultName } from "../events/batch.ts";
import {
  ALGORITHMS,
  DEFAULT_SEED,
  hashesOf,
  hashOfBlock,
  lowOf,
  NOT_APART,
  rootOf,
} from "./forms.ts";
import type { Apart, Base, Tagging } from "./forms.ts";

type Stored = Extract<KvEvent, { kind: "stored" }>;

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

const TAGGINGS: readonly Tagging[] = ["tagged", "bare"];

const usualBases = (): Base[] =>
  ALGORITHMS.map((algorithm) => ({ algorithm, root: rootOf(algorithm, DEFAULT_SEED) }));

export class Agreement {
  readonly #engine: string;
  readonly #logger: Logger;
  #form: Form | null = null;
  #isOff = false;
  #namespace: Namespace | null = null;
  #shards = 0;
  readonly #groups = new Set<number>();
  /** Root that the engine announced; null: none. */
  #root: Buffer | null = null;
  /** Low 64 bits of hashes expected of prompts on their way there, each with its base. */
  readonly #expected = new Map<bigint, Base>();
  /** Until then no other prompt is expected, because an engine may never show its form. */
  #expectAgainMs = -Infinity;
  /** Events that began a prompt since the form is known. */
  #begun = 0;

  constructor(engine: string, logger: Logger) {
    this.#engine = engine;
    this.#logger = logger;
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

  /** Forgets all, because another process may publish there now. */
  forget(): void {
    this.#form = null;
    this.#isOff = false;
    this.#root = null;
    this.#expected.clear();
    this.#unname();
  }

  hear(event: KvEvent): void {
    if (event.kind === "named") this.#take(event.name, event.group);
    else if (event.kind === "stored" && !this.#isOff) this.#look(event);
  }

  /** Expects the hashes of a prompt on its way there, because the engine may have reported the prompt's first blocks long ago. */
  async expect(tokens: readonly number[], blockSize: number, most: number): Promise<void> {
    const now = nowMs();
    const isSoon = now < this.#expectAgainMs;
    if (this.state !== "learning" || this.#root === null || isSoon) return;
    this.#expectAgainMs = now + GATEWAY_HASHES_EXPECT_MS;
    for (const base of this.#bases()) {
      const hashes = await hashesOf(base, tokens, blockSize, [NOT_APART, "bare"], most);
      for (let at = 0; at < hashes.length; at += HASH_BYTES) {
        this.#expected.set(lowOf(hashes.subarray(at, at + HASH_BYTES)), base);
      }
    }
    if (this.state !== "learning") this.#expected.clear();
    for (const oldest of this.#expected.keys()) {
      if (this.#expected.size <= GATEWAY_HASHES_EXPECTED_MAX) break;
      this.#expected.delete(oldest);
    }
  }

  /** Returns the bases that are possible. */
  #bases(): Base[] {
    const root = this.#root;
    const told = root === null ? [] : ALGORITHMS.map((algorithm) => ({ algorithm, root }));
    return [...told, ...usualBases()];
  }

  #take(name: VaultName | null, group: number): void {
    if (name === null) return this.#unname();
    const namespace = toNamespace(name.namespace);
    const isNew = this.#namespace?.equals(namespace) !== true;
    if (isNew) this.#unname();
    this.#namespace = namespace;
    this.#shards = name.shards;
    this.#groups.add(group);
    if (this.#root?.equals(name.root) === true) return;
    this.#root = Buffer.from(name.root);
    if (this.#form?.base.root.equals(name.root) === false) this.#form = null;
  }

  #unname(): void {
    this.#namespace = null;
    this.#groups.clear();
  }

  #look(event: Stored): void {
    const [first] = event.blocks;
    if (first === undefined) return;
    const form = this.#form;
    if (event.parent !== null) {
      if (form === null && this.#expected.size > 0) this.#meet(event);
    } else if (first.extra.length > 0) {
      if (form?.tagging === null) this.#learnTagging(event, form.base, first.extra);
    } else if (form === null) this.#learn(event);
    else this.#check(event, form.base);
  }

  #check(event: Stored, base: Base): void {
    this.#begun += 1;
    if (this.#begun % GATEWAY_HASH_CHECK_EVERY !== 1) return;
    if (!isMadeBy(event, base)) this.#giveUp(base.algorithm);
  }

  /** Tries the first extra key as a salt. Events omit part of the hash input of pictures, and of adapters in newer releases. */
  #learnTagging(event: Stored, base: Base, [salt = ""]: readonly string[]): void {
    const apart = { adapter: null, salt };
    const tagging = TAGGINGS.find((one) => isMadeBy(event, base, [apart, one])) ?? null;
    this.#form = { base, tagging };
  }

  #learn(event: Stored): void {
    const base = this.#bases().find((one) => isMadeBy(event, one));
    if (base !== undefined) this.#agree(base);
    // Without an announced root, the engine's root may be any.
    else if (this.#root !== null) this.#giveUp("its announced root");
  }

  /** Matches blocks by 64 bits, which do not collide by chance. */
  #meet({ blocks }: Stored): void {
    for (const { hash } of blocks) {
      const base = this.#expected.get(hash);
      if (base !== undefined) return this.#agree(base);
    }
  }

  #agree(base: Base): void {
    this.#form = { base, tagging: null };
    this.#expected.clear();
    const of = { engine: this.#engine, hashes: base.algorithm };
    this.#logger.info(of, "block hashes of an engine can be made here");
  }

  #giveUp(form: string): void {
    this.#isOff = true;
    this.#form = null;
    this.#expected.clear();
    const fix =
      "its blocks in vaults are known by its events alone; start it with --prefix-caching-hash-algo sha256_cbor";
    const reason = "its hashes differ from those made here";
    const about = { engine: this.#engine, form, reason, fix };
    this.#logger.warn(about, "vaults are not asked for an engine");
  }
}

/** Whether the first blocks of a prompt have the hashes that the engine reported. */
function isMadeBy(
  { blocks, blockSize }: Stored,
  base: Base,
  [apart, tagging]: readonly [Apart, Tagging] = [NOT_APART, "bare"],
): boolean {
  let parent = base.root;
  for (const [at, { hash, tokens, extra }] of blocks.slice(0, GATEWAY_HASHES_CHECKED).entries()) {
    if (at > 0 && extra.length > 0) return true;
    const how = [apart, at === 0, tagging] as const;
    const made = hashOfBlock(base, parent, tokens, [0, blockSize], how);
    if (made === null || lowOf(made) !== hash) return false;
    parent = made;
  }
  return true;
}
