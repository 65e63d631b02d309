// Owns what an engine's prompts cost and weigh, as status tells it.
import type { RecordClass } from "../../block.ts";

/** What a prompt of that length costs this engine, as far as it is known. */
export interface Forecast {
  tokens: number;
  /** All of it, without a restore; null: the engine has not computed a prompt yet. */
  computeMs: number | null;
  /** What must be computed after a restore: the tokens behind the last block boundary, in a step of their own. */
  restMs: number | null;
  loadMs: number;
  /** Bytes a vault would send of each class. */
  wireBytes: Record<RecordClass, number>;
  /** Slots of the arena that its restore takes. */
  slots: number;
}

/** What vaults keep, in record bytes. */
export interface Footprint {
  /** Of each token, in all groups that keep tokens. */
  tokenBytes: number;
  /** Of each boundary, in all groups that keep states. */
  stateBytes: number;
  /** False: nothing came back so far, so these are the most that it can be. */
  isMeasured: boolean;
}
