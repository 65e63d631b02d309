// Owns asking vaults which blocks of a prompt they hold: only blocks not known to be held, and no longer than a decision waits.
import { HASH_BYTES, hasBit, KeyPacker, PACKED_KEY_BYTES } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import {
  GATEWAY_LOOKUP_AGAIN_MS,
  GATEWAY_LOOKUP_BLOCKS_MAX,
  GATEWAY_LOOKUP_CALL_MS,
  GATEWAY_LOOKUP_KEYS_MAX,
  GATEWAY_LOOKUP_TOKENS_MIN,
  GATEWAY_LOOKUP_VAULTS_MAX,
  GATEWAY_LOOKUPS_KEPT_MAX,
  GATEWAY_LOOKUPS_MAX,
} from "../../base/limits/gateway.ts";
import type { Logger } from "../../base/log.ts";
import { nowMs, sleep } from "../../base/time.ts";
import type { Agreement, Named } from "../hashes/agreement.ts";
import type { BlockIndex } from "../index/index-of-blocks.ts";

/** One vault that may be asked. */
export interface AskedVault {
  readonly address: string;
  /** The vault must not be asked: it is away, or its breaker is open. */
  readonly isOpen: boolean;
  /** Returns a bitmap over packed keys; `tenant`: of all of them, 0: nobody in particular. */
  lookup(namespace: Namespace, keys: Buffer, deadlineMs: number, tenant: number): Promise<Buffer>;
}

/** found: the answer held blocks not known before · late: it came after the decision, whatever it held. */
export type LookupOutcome = "found" | "nothing" | "late" | "failed";

/** An engine that a prompt may go to, with the tokens that it holds itself or can pull. */
export interface AskingEngine {
  /** Number in the index. */
  holder: number;
  agreement: Agreement;
  /** The engine's hashes of the prompt's blocks, 32 bytes each. */
  hashes: Buffer;
  held: number;
  reach: number;
}

/** A prompt, cut into the blocks of these engines. */
export interface AskedPrompt {
  tokens: number;
  /** Number of its tenant: a store's names of a tenant's records change when they are flushed. */
  tenant: number;
  blockSize: number;
  engines: readonly AskingEngine[];
}

export interface LookupsOptions {
  /** Returns the vaults that exist now. */
  vaults: () => readonly AskedVault[];
  index: BlockIndex;
  /** 0: vaults are not asked. */
  lookupMs: number;
  onOutcome(outcome: LookupOutcome, seconds: number): void;
  logger: Logger;
}

/** One naming of a prompt's blocks, and the engines that use it. */
interface Question {
  named: Named;
  hashes: Buffer;
  holders: number[];
}

export class Lookups {
  readonly #options: LookupsOptions;
  /** When the same question may be repeated, by namespace and last block. */
  readonly #asked = new Map<string, number>();
  #open = 0;
  #isFailing = false;

  constructor(options: LookupsOptions) {
    this.#options = options;
  }

  /** Returns true where the index learned more of the prompt. Answers after `lookupMs` reach only the index. */
  async ask(prompt: AskedPrompt): Promise<boolean> {
    const { lookupMs } = this.#options;
    const { blockSize, engines, tenant } = prompt;
    const blocks = Math.min(GATEWAY_LOOKUP_BLOCKS_MAX, Math.floor((prompt.tokens - 1) / blockSize));
    const most = Math.max(0, ...engines.map(({ held }) => held));
    const isLong = blocks * blockSize - most >= GATEWAY_LOOKUP_TOKENS_MIN;
    if (lookupMs === 0 || !isLong || this.#vaults().length === 0) return false;
    const from = Math.floor(Math.min(...engines.map(({ reach }) => reach)) / blockSize);
    if (from >= blocks) return false;
    const questions = [...this.#questions(engines)].filter((one) => this.#may(one, blocks));
    if (questions.length === 0) return false;
    const state = { isFound: false, isOver: false };
    const all = questions.map((one) => this.#put(one, { from, blocks, tenant }, state));
    const over = new AbortController();
    const bound = sleep(lookupMs, over.signal).catch(() => {});
    await Promise.race([Promise.all(all), bound]);
    over.abort();
    state.isOver = true;
    return state.isFound;
  }

  /** Puts engines whose blocks have the same names into one question. */
  *#questions(engines: readonly AskingEngine[]): Generator<Question> {
    const found = new Map<string, Question>();
    for (const { holder, agreement, hashes } of engines) {
      const { named } = agreement;
      if (named === null) continue;
      const key = named.namespace.toString("latin1");
      const known = found.get(key);
      if (known === undefined) found.set(key, { named, hashes, holders: [holder] });
      else known.holders.push(holder);
    }
    yield* found.values();
  }

  #vaults(): AskedVault[] {
    const able = this.#options.vaults().filter(({ isOpen }) => !isOpen);
    return able.slice(0, GATEWAY_LOOKUP_VAULTS_MAX);
  }

  /** Refuses a question repeated too soon, or beyond the limit of open ones. */
  #may({ named: { namespace }, hashes }: Question, blocks: number): boolean {
    const now = nowMs();
    const last = hashes.toString("latin1", (blocks - 1) * HASH_BYTES, blocks * HASH_BYTES);
    const key = `${last} ${namespace.toString("latin1")}`;
    if (this.#open >= GATEWAY_LOOKUPS_MAX || (this.#asked.get(key) ?? 0) > now) return false;
    this.#asked.delete(key);
    this.#asked.set(key, now + GATEWAY_LOOKUP_AGAIN_MS);
    for (const oldest of this.#asked.keys()) {
      if (this.#asked.size <= GATEWAY_LOOKUPS_KEPT_MAX) break;
      this.#asked.delete(oldest);
    }
    return true;
  }

  /** Never rejects. Each vault's answer counts as it comes, so that a slow vault delays no other. */
  async #put(
    question: Question,
    { from, blocks, tenant }: { from: number; blocks: number; tenant: number },
    state: { isFound: boolean; isOver: boolean },
  ): Promise<void> {
    const { onOutcome, index, logger } = this.#options;
    const { named, holders } = question;
    const begunMs = nowMs();
    this.#open += 1;
    let isAnswered = false;
    let isNew = false;
    try {
      const most = from + Math.floor(GATEWAY_LOOKUP_KEYS_MAX / keysOfBlock(named));
      const until = Math.min(blocks, most);
      const hashes = question.hashes.subarray(0, until * HASH_BYTES);
      const made = hashes.length / HASH_BYTES;
      if (made <= from) return;
      const keys = keysOf(hashes, from, named);
      const held = new Uint8Array(keys.length / PACKED_KEY_BYTES);
      const asked = this.#vaults().map(async (vault) => {
        const bitmap = await vault.lookup(named.namespace, keys, GATEWAY_LOOKUP_CALL_MS, tenant);
        isAnswered = true;
        const there = wholeIn(bitmap, held, named, made - from);
        if (there.length === 0) return;
        const at = (block: number): number => (from + block) * HASH_BYTES;
        const found = there.map((block) => hashes.subarray(at(block), at(block + 1)));
        index.found(holders, Buffer.concat(found));
        isNew = true;
        if (!state.isOver) state.isFound = true;
      });
      const failed = (await Promise.allSettled(asked)).find(({ status }) => status === "rejected");
      if (failed?.status === "rejected") this.#failed(failed.reason);
      else this.#isFailing = false;
    } catch (error) {
      logger.warn({ err: error }, "vaults cannot be asked for a prompt");
    } finally {
      this.#open -= 1;
      const outcome = isAnswered ? (isNew ? "found" : "nothing") : "failed";
      onOutcome(state.isOver && isAnswered ? "late" : outcome, (nowMs() - begunMs) / 1000);
    }
  }

  /** Logged once, until all vaults answer. */
  #failed(error: unknown): void {
    const { message: reason } = toTierkvError(error);
    if (!this.#isFailing) this.#options.logger.warn({ reason }, "a vault does not answer look-ups");
    this.#isFailing = true;
  }
}

const keysOfBlock = ({ groups, shards }: Named): number => groups.length * shards;

/** Returns the packed keys of all groups and shards of the blocks after the first `from`, block by block. */
function keysOf(hashes: Buffer, from: number, named: Named): Buffer {
  const { groups, shards } = named;
  const count = hashes.length / HASH_BYTES - from;
  const packer = new KeyPacker(count * keysOfBlock(named));
  for (let block = 0; block < count; block += 1) {
    for (const group of groups) packer.add(hashes, from + block, group, shards);
  }
  return packer.keys;
}

/** Returns the blocks that this answer completes; a block's keys may be held by several vaults. */
function wholeIn(bitmap: Buffer, held: Uint8Array, named: Named, count: number): number[] {
  const each = keysOfBlock(named);
  const there: number[] = [];
  for (let block = 0; block < count; block += 1) {
    let isNew = false;
    let isWhole = true;
    for (let at = block * each; at < (block + 1) * each; at += 1) {
      if (hasBit(bitmap, at) && held[at] === 0) {
        held[at] = 1;
        isNew = true;
      }
      if (held[at] === 0) isWhole = false;
    }
    if (isNew && isWhole) there.push(block);
  }
  return there;
}
