// Owns a stand-in for an arena with one block and for encode threads, to test re-offers without an engine.
import { toNamespace } from "../../src/base/block.ts";
import { newSidecarCounters } from "../../src/base/metrics.ts";
import type { ArenaId } from "../../src/base/native.ts";
import { outboxPut } from "../../src/base/native.ts";
import type { VaultClient } from "../../src/client/vault/vault-client.ts";
import type { EncodePool } from "../../src/codec/pool.ts";
import type { OutboxRecord } from "../../src/codec/record.ts";
import { CodecChoice } from "../../src/sidecar/save/codec-choice.ts";
import { chooseCodecs } from "../../src/sidecar/save/codecs.ts";
import { Reoffer } from "../../src/sidecar/save/reoffer.ts";
import { StoreQueue } from "../../src/sidecar/save/store-queue.ts";
import type { BlockCache } from "../../src/sidecar/slots/block-cache.ts";
import { Block } from "../../src/sidecar/slots/block.ts";
import type { Group } from "../../src/sidecar/slots/groups.ts";
import { BlockOutcomes } from "../../src/sidecar/trace/block-outcomes.ts";
import { FetchPriority } from "../../src/sidecar/vaults/fetch-priority.ts";
import { openLinks } from "../../src/sidecar/vaults/vaults.ts";
import { AT_FIRST, makeRecords, NAMESPACE } from "./records.ts";
import { logger, MIB } from "./vaults.ts";

/** Answers stats as an empty vault of 1 MiB. */
export const roomy = (_call: unknown, done: (error: null, reply: object) => void): void =>
  done(null, { maxBytes: MIB, usedBytes: 0, reservedBytes: 0, records: 0 });

/** Stores every block raw. */
export const RAW_BLOCKS: CodecChoice = new CodecChoice(
  chooseCodecs({ codec: { kv: "raw" }, turboQuant: { enabled: null } }),
  { threads: 1, logger },
);

/** `count` returns how often the vault was looked at. */
export function openReoffer(client: VaultClient): { count(): number; close(): void } {
  const counters = newSidecarCounters();
  const vaults = { kv: [client], ssm: [] };
  const links = openLinks(vaults);
  const [record] = makeRecords(1);
  const id = outboxPut(record!.record);
  const place = { parent: Buffer.alloc(32), first: 0, tenant: 0, ...AT_FIRST };
  const run = { namespace: NAMESPACE, recordClass: "kv" as const, group: 0, ...place };
  const block = new Block("block", { ...run, hashes: Buffer.alloc(32, 1) }, 0);
  const cache = { copies: () => [block], lend: () => true, takeBack: () => {} };
  const made = { id, bytes: 1, isDeferred: false, make: () => Promise.resolve(), drop: () => {} };
  const pool = { encode: () => Promise.resolve([made as unknown as OutboxRecord]) };
  const group = { spec: { tokens: 16 }, geometry: 0, sourceBytes: 1, recordBytesMax: 1 };
  const common = { priority: new FetchPriority(), outcomes: new BlockOutcomes(), counters, logger };
  let looks = 0;
  const reoffer = new Reoffer({
    vaults,
    isMember: () => true,
    stores: { kv: [new StoreQueue({ client, link: links.kv[0]!, ...common })], ssm: [] },
    pool: pool as unknown as EncodePool,
    codecs: RAW_BLOCKS,
    copies: () => {
      looks += 1;
      return [
        {
          arena: 0 as ArenaId,
          cache: cache as unknown as BlockCache,
          shards: 1,
          namespace: toNamespace(NAMESPACE),
          groupAt: () => group as unknown as Group,
          isWorthSaving: () => true,
        },
      ];
    },
    isIdle: () => true,
    counters,
    logger,
  });
  return { count: () => looks, close: () => reoffer.close() };
}
