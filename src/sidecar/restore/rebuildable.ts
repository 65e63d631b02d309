// Owns the second step of a look-up: which missing blocks can be rebuilt from the other records of their stripes.
import { HASH_BYTES, hasBit, keyCount, newBitmap, KeyPacker, PARITY_GROUP, setBit } from "../../block.ts";
import type { Namespace } from "../../block.ts";
import { offered } from "../../client/found.ts";
import { toTierkvError } from "../../errors.ts";
import { KEYS_PER_SLICE } from "../../limits/general.ts";
import type { Logger } from "../../log.ts";
import { anchorOf, NO_VAULT, REBUILT } from "../../pool/placement.ts";
import { membersOf } from "../../pool/stripes.ts";
import { yieldToLoop } from "../../time.ts";
import type { Kin, Pool } from "../vaults/pools.ts";
import type { LookupGate } from "../vaults/vaults.ts";

/** A group of a look-up. */
interface AskedGroup {
  group: number;
  /** Block hashes, 32 bytes each. */
  hashes: Buffer;
}

export interface RebuildContext {
  namespace: Namespace;
  shards: number;
  gates: readonly LookupGate[];
  silent: ReadonlySet<LookupGate>;
  timeoutMs: number;
  isWanted(): boolean;
  logger: Logger;
}

/** Keys that vaults must hold for one block to be rebuilt. */
interface Need {
  index: number;
  keys: { vault: number; hash: number; group: number }[];
}

/** Finds blocks that can be rebuilt, sets their bits in `held` and returns them. `saidAt`: whether a vault reported a block. */
export async function findRebuildable(
  group: AskedGroup,
  held: Buffer,
  pool: Pick<Pool, "kinOf" | "width">,
  saidAt: (vault: number, index: number) => boolean,
  context: RebuildContext,
): Promise<Buffer> {
  const found = newBitmap(group.hashes.length / HASH_BYTES);
  const needs: Need[] = [];
  for (const { index, kin } of await candidates(group, held, pool, saidAt, context)) {
    const others = kin.others
      .filter(({ at, vault }) => !saidAt(vault, at))
      .map(({ at, vault }) => ({ vault, hash: at, group: group.group }));
    const parity = { vault: kin.vault, hash: kin.last, group: group.group | PARITY_GROUP };
    needs.push({ index, keys: [...others, parity] });
  }
  if (needs.length === 0) return found;
  const missing = await askAll(group, needs, context);
  for (const { index, keys } of needs) {
    if (keys.some((key) => missing.has(key))) continue;
    setBit(found, index);
    setBit(held, index);
  }
  return found;
}

/**
 * Returns missing blocks whose stripes are otherwise held. Their vault must be in trouble or a deeper block held, so that blocks
 * never stored cost no call.
 */
async function candidates(
  group: AskedGroup,
  held: Buffer,
  pool: Pick<Pool, "kinOf" | "width">,
  saidAt: (vault: number, index: number) => boolean,
  { gates, silent }: RebuildContext,
): Promise<{ index: number; kin: Kin }[]> {
  const count = group.hashes.length / HASH_BYTES;
  let deepest = count - 1;
  while (deepest >= 0 && !hasBit(held, deepest)) deepest -= 1;
  /** A vault with nothing of the prompt may have restarted empty. */
  const isEmpty = gates.map((_, vault) => {
    for (let index = 0; index < count; index += 1) if (saidAt(vault, index)) return false;
    return true;
  });
  const isInTrouble = (vault: number): boolean => {
    const gate = gates[vault];
    return (
      gate === undefined || gate.state === "down" || silent.has(gate) || isEmpty[vault] === true
    );
  };
  const all: { index: number; kin: Kin }[] = [];
  for (let index = 0; index < count; index += 1) {
    if ((index + 1) % KEYS_PER_SLICE === 0) await yieldToLoop();
    if (hasBit(held, index)) continue;
    const members = membersOf(index, pool.width);
    if (!members.every((at) => at < count && (at === index || hasBit(held, at)))) continue;
    const first = anchorOf(index);
    const kin = pool.kinOf(group.hashes.subarray(first * HASH_BYTES), index);
    if (kin !== null && (index < deepest || isInTrouble(kin.home))) all.push({ index, kin });
  }
  return all;
}

/** Asks all vaults at once, one call each; returns the keys that are missing. */
async function askAll(
  group: AskedGroup,
  needs: readonly Need[],
  { namespace, shards, gates, timeoutMs, isWanted, logger }: RebuildContext,
): Promise<Set<Need["keys"][number]>> {
  const keys = needs.flatMap((need) => need.keys);
  const missing = new Set(keys);
  const vaults = new Set(keys.map(({ vault }) => vault));
  const ask = async (vault: number): Promise<void> => {
    const of = keys.filter((key) => key.vault === vault);
    const packer = new KeyPacker(of.length * shards);
    for (const { hash, group: number } of of) packer.add(group.hashes, hash, number, shards);
    const { keys: packed } = packer;
    const offers = await gates[vault]?.find(namespace, packed, timeoutMs, isWanted);
    if (offers === undefined || offers === null) return;
    const present = offered(offers, keyCount(packed));
    for (const [place, key] of of.entries()) {
      let there = 0;
      while (there < shards && hasBit(present, place * shards + there)) there += 1;
      if (there === shards) missing.delete(key);
    }
  };
  await Promise.all(
    [...vaults].map((vault) =>
      ask(vault).catch((error: unknown) => {
        logger.debug({ err: toTierkvError(error) }, "parity look-up failed");
      }),
    ),
  );
  return missing;
}

/** Returns each block's sources: REBUILT for rebuildable blocks, and as second source of blocks without one. */
export function withRebuilt(
  { owners, seconds }: { owners: Uint8Array; seconds: Uint8Array },
  rebuildable: Buffer,
  width: number,
): { owners: Uint8Array; seconds: Uint8Array } {
  const others = seconds.length === 0 ? new Uint8Array(owners.length).fill(NO_VAULT) : seconds;
  return {
    owners: owners.map((owner, index) => (hasBit(rebuildable, index) ? REBUILT : owner)),
    seconds: others.map((second, index) => {
      // A rebuilt block is offered to its owner once that vault is back.
      if (hasBit(rebuildable, index)) return owners[index] ?? NO_VAULT;
      const last = membersOf(index, width).at(-1) ?? owners.length;
      return second === NO_VAULT && last < owners.length ? REBUILT : second;
    }),
  };
}
