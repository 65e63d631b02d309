// Owns the report of where a prompt stops matching an earlier one: its shape, and the check of its fields.
import { asBuffer } from "../../base/block.ts";
import { DIVERGENCE_TOKENS_MAX, UNASKED_ROWS_MAX } from "../../base/limits/general.ts";
import type { Reader } from "./reader.ts";

/** Where a prompt stops matching an earlier one of the same engine. Token ids are the model's. */
export interface Divergence {
  /** Kind of the difference; `salt` and `picture`: the tokens are equal, and these are not. */
  what: "tokens" | "salt" | "picture";
  /** Tokens that are equal before it. */
  at: number;
  /** Tokens of the prompt. */
  tokens: number;
  /** Id of the earlier request. */
  earlier: string;
  /** True where it lies in the earlier request's answer. */
  isAnswer: boolean;
  /** Tokens that were replaced, where equal text follows; otherwise 0. */
  gone: number;
  /** Tokens in their place. */
  come: number;
  /** Equal tokens behind them; with `salt`, equal tokens from the start. */
  same: number;
  /** True where the same parts come in another order. */
  isMoved: boolean;
  /** Folder of the engine's tokenizer; empty: none on this machine. */
  tokenizer: string;
  /** Token ids of the message's beginning, which name its role; empty: not known. */
  head: number[];
  /** Token ids before the difference. */
  before: number[];
  /** Token ids behind it in the earlier prompt. */
  was: number[];
  /** Token ids behind it in this prompt. */
  now: number[];
}

/** A request's divergence. */
export interface Diverged {
  req: string;
  divergence: Divergence;
}

/** Reads the `divergences` and `tokenizer` of a `counts` frame; a shim without any leaves them out. */
export function parseDivergences(message: Reader): Diverged[] {
  if (!message.has("divergences")) return [];
  const tokenizer = message.text("tokenizer");
  return message.maps("divergences", 0, UNASKED_ROWS_MAX).map((row) => ({
    req: row.text("req"),
    divergence: {
      what: row.oneOf("what", ["tokens", "salt", "picture"]),
      at: row.count("at"),
      tokens: row.count("tokens"),
      earlier: row.text("earlier"),
      isAnswer: row.u32("answer", 0, 1) === 1,
      gone: row.count("gone"),
      come: row.count("come"),
      same: row.count("same"),
      isMoved: row.u32("moved", 0, 1) === 1,
      tokenizer,
      head: idsOf(row, "head"),
      before: idsOf(row, "before"),
      was: idsOf(row, "was"),
      now: idsOf(row, "now"),
    },
  }));
}

function idsOf(row: Reader, key: string): number[] {
  const bytes = asBuffer(row.bytes(key, 0, 4 * DIVERGENCE_TOKENS_MAX));
  if (bytes.length % 4 !== 0) throw row.wrong(key, "token ids of uint32");
  return Array.from({ length: bytes.length / 4 }, (_, at) => bytes.readUInt32LE(4 * at));
}
