// Owns the form of a source of blocks: what a save must know of one group of one rank of one engine.
import type { RecordClass } from "../../base/block.ts";
import type { ArenaId, GeometryId } from "../../base/native.ts";

/** The origin of blocks: one group of one rank of one engine. */
export interface SaveSource {
  readonly arena: ArenaId;
  readonly geometry: GeometryId;
  readonly recordClass: RecordClass;
  readonly group: number;
  readonly shard: number;
  readonly shardCount: number;
  /** Tokens of one block. */
  readonly tokens: number;
  /** Decoded bytes of one block's shard. */
  readonly sourceBytes: number;
  /** Called exactly once per item taken, when the save no longer needs the slot. */
  finish(slot: number, generation: number): void;
  /** Called when the slots of a batch are finished: a good time to grant new ones. */
  onBatch(): void;
  /** True when the worker may soon have no slot to save into. */
  isShort(): boolean;
  /** False while a block could not be restored faster than computed. */
  isWorthSaving(): boolean;
}
