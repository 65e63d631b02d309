// Owns the choice of short restores without a look-up: this sidecar stored the blocks, and the fetch shows whether they are still held.
import { countBits, HASH_BYTES, newBitmap, setBit } from "../../block.ts";
import { blockKeys } from "../../key-text.ts";
import { KNOWN_BLOCKS_MAX, KNOWN_BYTES_MAX } from "../../limits/general.ts";
import type { SidecarCounters } from "../../metrics.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { PrefetchGroup } from "../socket/asked.ts";
import type { Prefetch, SidecarMessage } from "../socket/messages.ts";
import type { BlockOutcomes } from "../trace/block-outcomes.ts";
import type { LookupGate, LookupGates } from "../vaults/vaults.ts";
import type { ArenaContext } from "./arena-context.ts";
import type { LookupAnswer } from "./lookup-answer.ts";
import type { Plan } from "./plan.ts";

/** Returns the answer of a look-up if the vault has dropped none of the blocks; null when a look-up is needed. */
export function knownAnswer(
  plan: Plan,
  { groups, tenant }: Prefetch,
  context: ArenaContext | null,
  { outcomes, gates }: { outcomes: BlockOutcomes; gates: LookupGates },
): LookupAnswer | null {
  const { namespace, isHandedOver } = plan;
  const [group, more] = groups;
  if (namespace === null || context === null || isHandedOver) return null;
  if (group === undefined || more !== undefined || !isShort(group, context)) return null;
  if (!isOneVault(gates[group.class])) return null;
  const count = group.hashes.length / HASH_BYTES;
  const keyOf = blockKeys(namespace, group.group, group.hashes);
  for (let at = 0; at < count; at += 1) {
    if (!outcomes.isStored(namespace, { class: group.class, tenant }, keyOf(at))) return null;
  }
  plan.isKnown = true;
  const held = newBitmap(count).fill(0xff);
  const offer = { first: 0, end: count, vault: 0, second: null, archived: 0, source: null };
  return { groups: [{ keyOf, held, offers: [offer] }], silent: new Set<never>() };
}

/** True for a short prompt of which the engine holds nothing. Its own blocks would need a look-up, which offers lost ones again. */
function isShort(
  { group, hashes, from }: PrefetchGroup,
  { shapeOf, sourceBytes }: ArenaContext,
): boolean {
  const count = hashes.length / HASH_BYTES;
  const isFew = count <= KNOWN_BLOCKS_MAX && count * sourceBytes(group) <= KNOWN_BYTES_MAX;
  return isFew && from === 0 && shapeOf(group).tail === 0;
}

/** Requires a recent round-trip time, because every decision depends on it. */
function isOneVault([gate, other]: readonly LookupGate[]): boolean {
  const isUp = gate?.tier === "vault" && gate.state === "up" && gate.isPaced;
  return isUp && other === undefined;
}

/** Counts the plan as a look-up; where the vault had dropped blocks, only placed ones were hits. `tokens`: prompt tokens placed. */
export function settleKnown(
  plan: Plan,
  tokens: number,
  cache: BlockCache,
  counters: SidecarCounters,
): SidecarMessage[] {
  const { req, number, isKnown, runs, ranges } = plan;
  const [range] = ranges;
  if (!isKnown || range === undefined) return [];
  const { group, count, keyOf } = range;
  const isWrong = runs[0]?.cut === "end_of_hit";
  const held = newBitmap(count);
  for (let index = 0; index < count; index += 1)
    if (!isWrong || cache.isPlaced(keyOf(index))) setBit(held, index);
  counters.add("lookup_keys", count);
  counters.add("lookup_hits", countBits(held, count));
  if (!isWrong) return [];
  plan.case.missed(tokens, "evicted");
  return [{ t: "held", req, plan: number, groups: [{ group, held }], tokens }];
}
