// Owns a line of a trace in Mooncake's public format: a request's arrival, its length, and its blocks' names.
import { TierkvError } from "../../base/errors.ts";
import { parseJson } from "../../base/json.ts";
import { PLAN_REQUEST_BLOCKS_MAX } from "../../base/limits/tools.ts";

export interface TracedRequest {
  tokens: number;
  /** Names of its blocks, in order; equal names are equal prefixes. */
  blocks: readonly number[];
}

/** Mooncake's block size, used unless a request of two blocks in the trace shows another. */
export const TRACE_BLOCK_TOKENS = 512;

/** null: an empty line. `where` is for messages. */
export function readRequest(line: string, where: string): TracedRequest | null {
  if (line.trim() === "") return null;
  const value = parseJson(line);
  if (value === undefined) throw notTraced(where, "it is no JSON");
  const { input_length: tokens, hash_ids: blocks } = (value ?? {}) as Record<string, unknown>;
  if (typeof tokens !== "number" || !Number.isSafeInteger(tokens) || tokens < 1) {
    throw notTraced(where, "input_length is no number of tokens");
  }
  if (!Array.isArray(blocks) || !blocks.every((id) => Number.isSafeInteger(id))) {
    throw notTraced(where, "hash_ids is no list of whole numbers");
  }
  if (blocks.length > PLAN_REQUEST_BLOCKS_MAX) {
    throw notTraced(where, `it has more than ${PLAN_REQUEST_BLOCKS_MAX} blocks`);
  }
  return { tokens, blocks: blocks as number[] };
}

function notTraced(path: string, reason: string): TierkvError {
  const fix = "name a trace of lines {timestamp, input_length, output_length, hash_ids}";
  return new TierkvError("CONFIG_UNREADABLE", { path, reason, fix });
}
