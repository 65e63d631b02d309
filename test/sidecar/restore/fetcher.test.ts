// Owns the proof that a fetch from an archive is not given up while it takes as long as the vault said.
import { expect, test } from "vitest";
import { Arena } from "../../../src/arena/arena.ts";
import { ItemStatus } from "../../../src/base/block.ts";
import { TierkvError } from "../../../src/base/errors.ts";
import { blockKey } from "../../../src/base/key-text.ts";
import { newSidecarCounters } from "../../../src/base/metrics.ts";
import { sleep } from "../../../src/base/time.ts";
import { Archive } from "../../../src/client/archive/archive.ts";
import type { BlockStore, FetchOptions } from "../../../src/client/source.ts";
import { EngineRates } from "../../../src/cost/engine-rates.ts";
import { Link } from "../../../src/cost/link.ts";
import { Fetcher } from "../../../src/sidecar/restore/fetcher.ts";
import { BlockCache } from "../../../src/sidecar/slots/block-cache.ts";
import { FetchPriority } from "../../../src/sidecar/vaults/fetch-priority.ts";
import { AT_FIRST, digest, NAMESPACE } from "../../support/records.ts";
import { closeAfterTest, logger, until } from "../../support/vaults.ts";

const STALL_MS = 50;
const READ_MS = 400;

/** Fetches one block that comes after READ_MS, or never; `patienceMs`: what its plan is worth; `farMs`: what the vault said of its archive; null: it needs none. */
async function stateAfter(
  farMs: number | null,
  comes: Promise<void>,
  patienceMs = 0,
): Promise<string> {
  const arena = closeAfterTest(new Arena({ slotBytes: 4096, slotCount: 1, dir: null }));
  await until(() => arena.status().touchedSlots === 1, "a touched arena");
  const cache = new BlockCache({ arena, shards: 1, saveSlots: 0, onUnwanted() {}, onRoom() {} });
  cache.setTouched(1);
  // Stalls as the interface says.
  const fetch = async (
    _ns: Buffer,
    _window: object,
    { stallMs }: FetchOptions,
  ): Promise<object> => {
    const stalled = new TierkvError("FETCH_STALLED", { reason: "no byte" });
    const end = new AbortController();
    const late = sleep(stallMs ?? 0, end.signal).then(() => Promise.reject(stalled));
    await Promise.race([comes, late]).finally(() => end.abort());
    late.catch(() => {});
    return { statuses: Uint8Array.of(ItemStatus.ACCEPTED), bytes: 1, reason: null };
  };
  const vault = { address: "vault", tier: "vault", isDown: false, epoch: 1, fetch };
  const store = vault as unknown as BlockStore;
  const archive = new Archive(store);
  const vaults = { kv: [store], ssm: [] };
  const link = new Link();
  if (farMs !== null) link.farPace = { firstMs: farMs, nextMs: 1 };
  const fetcher = new Fetcher({
    cache,
    arena: arena.id,
    shards: 1,
    fidelityOf: () => 0,
    vaults,
    links: { kv: [link], ssm: [] },
    rates: new EngineRates(),
    priority: new FetchPriority(),
    callMs: 10_000,
    stallMs: STALL_MS,
    geometryOf: () => 0,
    blockBytes: () => 4096,
    counters: newSidecarCounters(),
    logger,
  });
  const hashes = digest("block");
  const place = { parent: Buffer.alloc(32), first: 0, tenant: 0, ...AT_FIRST };
  const far = farMs === null ? {} : { archived: 1, source: archive };
  const name = { namespace: NAMESPACE, recordClass: "kv", group: 0, hashes, ...place } as const;
  const key = blockKey(NAMESPACE, 0, hashes);
  const block = cache.use(key, { ...name, ...far }, 0, { patienceMs, onBlock() {} });
  fetcher.add(block);
  await until(() => block.state === "placed" || block.state === "gone", "the block's end");
  return block.state;
}

test("a record of an archive is awaited as long as the vault said", async () => {
  expect(await stateAfter(60_000, sleep(READ_MS))).toBe("placed");
});

test("a record of a plan that saves much is awaited longer than any", async () => {
  expect(await stateAfter(null, sleep(READ_MS), 60_000)).toBe("placed");
  expect(await stateAfter(null, sleep(READ_MS), 1)).toBe("gone");
});

test.each([
  ["the vault's memory", null],
  ["an archive that is quicker", 1],
])("a record of %s that does not come is given up", async (_name, farMs) => {
  expect(await stateAfter(farMs, new Promise(() => {}))).toBe("gone");
});
