// Owns blocks that wait in their slots to be encoded: their names, and how many a batch takes.
import { HASH_BYTES } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { SAVE_BATCH_ITEMS } from "../../base/limits/general.ts";
import type { SaveItem } from "../socket/messages.ts";
import type { Destination } from "./store-queue.ts";

export interface Pending {
  item: SaveItem;
  /** Packed key; `name` is its text with the namespace. */
  key: Buffer;
  name: string;
  namespace: Namespace;
  /** In sending order, at least one. */
  destinations: readonly Destination[];
  /** True for a block that a lossy codec gave back. */
  isDecoded: boolean;
}

/** Takes the next blocks of one namespace, tenant and kind of codec, at least one, up to `bytes` decoded bytes. */
export function takeBatch(pending: Pending[], blockBytes: number, bytes: number): Pending[] {
  const [first] = pending;
  const most = Math.max(1, Math.min(SAVE_BATCH_ITEMS, Math.floor(bytes / blockBytes)));
  let count = 0;
  const isOfFirst = ({ namespace, item, isDecoded }: Pending): boolean =>
    namespace === first?.namespace &&
    item.tenant === first.item.tenant &&
    isDecoded === first.isDecoded;
  for (const next of pending) {
    if (count === most || !isOfFirst(next)) break;
    count += 1;
  }
  return pending.splice(0, count);
}

/** Copies the parent's hash, because it outlives its frame; the block's own hash lies in its key. */
export function ownHashes(key: Buffer, { parent }: SaveItem): Pick<SaveItem, "hash" | "parent"> {
  return { hash: key.subarray(0, HASH_BYTES), parent: Buffer.from(parent) };
}
