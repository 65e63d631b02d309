// Owns the types in which status reports costs and sizes of an engine's prompts.
import type { RecordClass } from "../../base/block.ts";

/** Costs of a prompt of `tokens` for this engine, as far as they are known. */
export interface Forecast {
  /** Length of the prompt. */
  tokens: number;
  /** True where no prompt of that length was computed yet, so that times follow from shorter prompts. */
  isBeyond: boolean;
  /** Computing all of it; null until the engine has computed a prompt. */
  computeMs: number | null;
  /** Computing the tokens behind the last block boundary after a restore, in a step of their own. */
  restMs: number | null;
  /** Copying of the blocks by the engine; null until it has loaded a few prompts. */
  loadMs: number | null;
  /** From the look-up until the engine has copied all, as restores of an engine without other requests took; null until two did. */
  seenMs: number | null;
  /**
   * Time of a restored request beside look-up, load and the steps that compute, from its arrival at the engine's server to its
   * first token: between server and engine, around a step, and choosing the token; null until two restores did.
   */
  asideMs: number | null;
  /** Bytes that vaults would send, by class. */
  wireBytes: Record<RecordClass, number>;
  /** Arena slots that its restore takes. */
  slots: number;
}

/** Record bytes that vaults keep. */
export interface Footprint {
  /** Per token, over all groups that keep tokens. */
  tokenBytes: number;
  /** Per boundary, over all groups that keep states. */
  stateBytes: number;
  /** False until a record came back: the sizes are upper bounds until then. */
  isMeasured: boolean;
}
