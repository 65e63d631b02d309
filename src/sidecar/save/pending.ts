// Owns blocks that wait in their slots to become records: how they are named, and how many of them are taken at once.
import type { Namespace } from "../../block.ts";
import { SAVE_BATCH_ITEMS } from "../../limits.ts";
import type { SaveItem } from "../socket/messages.ts";
import type { ParityDestination } from "./destinations.ts";
import type { Destination } from "./store-queue.ts";

export interface Pending {
  item: SaveItem;
  key: string;
  namespace: Namespace;
  /** One after the other, one at least. */
  destinations: readonly Destination[];
  parity: ParityDestination | null;
}

/** Blocks of one namespace and tenant, one at least, up to so many decoded bytes. */
export function takeBatch(pending: Pending[], blockBytes: number, bytes: number): Pending[] {
  const [first] = pending;
  const most = Math.max(1, Math.min(SAVE_BATCH_ITEMS, Math.floor(bytes / blockBytes)));
  let count = 0;
  const isOfFirst = ({ namespace, item }: Pending): boolean =>
    namespace === first?.namespace && item.tenant === first.item.tenant;
  for (const next of pending) {
    if (count === most || !isOfFirst(next)) break;
    count += 1;
  }
  return pending.splice(0, count);
}

export function saveKey(
  namespace: Namespace,
  { group, shard }: { group: number; shard: number },
  { hash }: SaveItem,
): string {
  return `${group}:${shard}:${hash.toString("latin1")}${namespace.toString("latin1")}`;
}

/** The hashes outlive the frame they came in. */
export function ownHashes({ hash, parent }: SaveItem): Pick<SaveItem, "hash" | "parent"> {
  return { hash: Buffer.from(hash), parent: Buffer.from(parent) };
}
