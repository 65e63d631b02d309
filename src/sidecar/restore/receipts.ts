// Owns the making of restore receipts: digests of a few blocks while they still lie in the arena, signed, written to a file.
import { createHash } from "node:crypto";
import { HASH_BYTES, hashAt } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import {
  RECEIPT_SAMPLE_BYTES_MAX,
  RECEIPT_SAMPLE_MAX,
  RECEIPTS_AT_ONCE,
} from "../../base/limits/receipts.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import { slotsDigest } from "../../base/native.ts";
import { randomId, wallClockMs } from "../../base/time.ts";
import { packageVersion } from "../../base/version.ts";
import type { ReceiptFolder } from "../../receipt/folder.ts";
import { makeReceipt } from "../../receipt/receipt.ts";
import type { ReceiptGroup, ReceiptSample, ReceiptStatement } from "../../receipt/receipt.ts";
import type { Block } from "../slots/block.ts";
import { shapeOf } from "../slots/groups.ts";
import type { Release } from "../socket/messages.ts";
import type { ArenaContext } from "./arena-context.ts";
import type { Plan } from "./plan.ts";

export interface ReceiptsOptions {
  /** True: requests that did not ask get one, too. */
  isAlways: boolean;
  folder: ReceiptFolder;
  fidelityOf(namespace: Buffer): number;
  /** Returns the model's name, as far as it is known. */
  modelOf(namespace: Namespace): string | null;
  counters: SidecarCounters;
  logger: Logger;
}

const NAME_BYTES = 16;

/** One record of a block, of which a digest is taken. */
interface Part {
  block: Block;
  shard: number;
}

export class Receipts {
  readonly #options: ReceiptsOptions;
  #open = 0;
  #isTroubleSaid = false;

  constructor(options: ReceiptsOptions) {
    this.#options = options;
  }

  /** Returns the name of a request's receipt: as its engine `asked`, or a random one where all get one; empty: none. */
  nameOf(asked: string, isStored = true): string {
    // Vaults have no records of cut blocks, so their receipt could not be checked.
    if (!isStored) return "";
    return asked === "" && this.#options.isAlways ? randomId(NAME_BYTES) : asked;
  }

  /** Writes the receipt in the background, after the engine has copied and before the blocks are left. Failures are counted. */
  restored(
    plan: Plan,
    { from, tokens }: Pick<Release, "from" | "tokens">,
    context: ArenaContext | null,
  ): void {
    const { namespace, receipt } = plan;
    if (receipt === "" || tokens === 0 || context === null || namespace === null) return;
    const { counters } = this.#options;
    if (this.#open >= RECEIPTS_AT_ONCE) {
      counters.add("receipts_dropped");
      return;
    }
    this.#open += 1;
    plan.case.account.receipt = receipt;
    this.#make(plan, namespace, { from, to: from + tokens }, context)
      .then(() => counters.add("receipts_written"))
      .catch((error: unknown) => this.#failed(error))
      .finally(() => (this.#open -= 1));
  }

  #failed(error: unknown): void {
    const { counters, logger } = this.#options;
    counters.add("receipts_dropped");
    if (this.#isTroubleSaid) return;
    this.#isTroubleSaid = true;
    logger.warn(
      { err: toTierkvError(error) },
      "a receipt was not written; further such receipts are only counted (receipts_dropped)",
    );
  }

  async #make(
    plan: Plan,
    namespace: Namespace,
    tokens: ReceiptStatement["tokens"],
    context: ArenaContext,
  ): Promise<void> {
    const { folder, fidelityOf, modelOf } = this.#options;
    const groups = blocksOf(plan, tokens, context);
    const hashes = createHash("sha256");
    for (const blocks of groups) {
      for (const block of blocks) hashes.update(hashAt(block, block.index));
    }
    const { account } = plan.case;
    const parts = sampleOf(groups, context);
    const sample = await digested(parts, context);
    const shaped = parts.filter(isFirstOfItsGroup);
    const statement: ReceiptStatement = {
      version: 1,
      at: new Date(wallClockMs()).toISOString(),
      software: packageVersion(),
      request: plan.req,
      model: modelOf(namespace) ?? "",
      namespace: namespace.toString("hex"),
      fidelity: fidelityOf(namespace),
      tokens,
      bytes: groups.flat().reduce((sum, { group }) => sum + context.sourceBytes(group), 0),
      vaults: account.vaults,
      savedMs: account.saved,
      groups: groups.map(groupOf),
      hashes: hashes.digest("hex"),
      shapes: shaped.map(({ block: { group }, shard }) => ({
        shard,
        ...shapeOf(context.groupAt(group, shard)),
      })),
      sample,
    };
    folder.write(plan.receipt, makeReceipt(statement, folder.key()));
  }
}

/** Returns, per group, the placed blocks between those tokens. */
function blocksOf(
  plan: Plan,
  { from, to }: ReceiptStatement["tokens"],
  { shapeOf: specOf }: ArenaContext,
): Block[][] {
  const isUsed = (block: Block): boolean => {
    const end = (block.at + 1) * specOf(block.group).tokens;
    return block.state === "placed" && end > from && end <= to;
  };
  return plan.runs.map((run) => run.blocks.filter(isUsed)).filter(({ length }) => length > 0);
}

const groupOf = ([first, ...more]: Block[]): ReceiptGroup => ({
  group: first?.group ?? 0,
  class: first?.recordClass ?? "kv",
  first: first?.at ?? 0,
  blocks: 1 + more.length,
});

/** Samples blocks evenly over each group, its last block included. */
function sampleOf(groups: readonly Block[][], context: ArenaContext): Part[] {
  const { shards } = context.cache;
  const share = RECEIPT_SAMPLE_BYTES_MAX / groups.length;
  return groups.flatMap((blocks) => {
    const bytes = context.sourceBytes(blocks[0]?.group ?? 0);
    const records = RECEIPT_SAMPLE_MAX / groups.length / shards;
    const most = Math.max(1, Math.floor(Math.min(records, share / bytes)));
    const count = Math.min(most, blocks.length);
    return Array.from({ length: count }, (_none, at) => {
      const block = blocks[Math.ceil(((at + 1) * blocks.length) / count) - 1];
      if (block === undefined) return [];
      return Array.from({ length: shards }, (_shard, shard) => ({ block, shard }));
    }).flat();
  });
}

const isFirstOfItsGroup = ({ block, shard }: Part, at: number, all: readonly Part[]): boolean =>
  all.findIndex((one) => one.block.group === block.group && one.shard === shard) === at;

/** Takes the digests; the blocks keep their slots until then. */
async function digested(
  parts: readonly Part[],
  { cache, groupAt }: ArenaContext,
): Promise<ReceiptSample[]> {
  const lent = [...new Set(parts.map(({ block }) => block))].filter((block) => cache.lend(block));
  try {
    const own = parts.filter(({ block }) => lent.includes(block));
    const triples = own.flatMap(({ block: { group, leases, leaseAt }, shard }) => {
      const pair = (leaseAt + shard) * 2;
      return [groupAt(group, shard).geometry, leases[pair] ?? 0, leases[pair + 1] ?? 0];
    });
    const digests = Buffer.from(await slotsDigest(cache.arena, Uint32Array.from(triples)));
    return own.map(({ block, shard }, at) => ({
      group: block.group,
      shard,
      block: block.at,
      hash: hashAt(block, block.index).toString("hex"),
      digest: digests.toString("hex", at * HASH_BYTES, (at + 1) * HASH_BYTES),
    }));
  } finally {
    for (const block of lent) cache.takeBack(block);
  }
}
