// Owns blocks that wait in their slots to become records: how they are named, and how many of them are taken at once.
import { HASH_BYTES } from "../../block.ts";
import type { Namespace } from "../../block.ts";
import { SAVE_BATCH_ITEMS } from "../../limits/general.ts";
import type { SaveItem } from "../socket/messages.ts";
import type { ParityDestination } from "./destinations.ts";
import type { Destination } from "./store-queue.ts";

export interface Pending {
  item: SaveItem;
  /** Packed, and as its text. */
  key: Buffer;
  name: string;
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

/** The hashes outlive the frame they came in; that of the block stands in its key. */
export function ownHashes(key: Buffer, { parent }: SaveItem): Pick<SaveItem, "hash" | "parent"> {
  return { hash: key.subarray(0, HASH_BYTES), parent: Buffer.from(parent) };
}
