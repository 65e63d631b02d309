// Owns the advice of `tierkv doctor --engine`: predicted savings, and the one change that matters most.
import { orNone, showBytes, showMs, showRate, showShare, table } from "../../base/text.ts";
import type { FarEngine, Pace } from "./far-engine.ts";

/** Forecast for a prompt that returns after the engine evicted it. */
export interface FarOutlook extends Pace {
  /** null: the model's bytes per token are not known, or the link could not be measured. */
  restoreMs: number | null;
  /** Bytes per token below which a restore is faster; null: the link could not be measured. */
  bytesPerTokenMost: number | null;
}

const GBIT = 1e9 / 8;
/** Factor of the faster link that the advice compares. */
const FASTER = 10;
/** Share of the computing time that a faster link must save to be advised. */
const WORTH = 0.25;
/** Hit share of the engine's own cache above which restores save next to nothing. */
const HELD_ENOUGH = 0.95;

/**
 * A restore asks the vault, moves the bytes of whole blocks, and leaves the rest to the engine. `bytesOf`: bytes that a restore of
 * so many tokens moves; null: unknown.
 */
export function farOutlook(
  { paces, blockTokens, roundTripMs, bytesPerS }: FarEngine,
  bytesOf: ((tokens: number) => number) | null,
): FarOutlook[] {
  return paces.map((pace) => {
    if (bytesPerS === null) return { ...pace, restoreMs: null, bytesPerTokenMost: null };
    const { tokens, ms, restMs } = pace;
    // At least one token is computed.
    const restored = Math.floor((tokens - 1) / blockTokens) * blockTokens;
    const fixedMs = roundTripMs + restMs;
    const bytesPerTokenMost = Math.max(0, ((ms - fixedMs) / 1000) * bytesPerS) / tokens;
    const restoreMs = bytesOf && fixedMs + (bytesOf(restored) / bytesPerS) * 1000;
    return { ...pace, restoreMs, bytesPerTokenMost };
  });
}

export function helpsFar(rows: readonly FarOutlook[]): boolean {
  return rows.some(({ ms, restoreMs }) => restoreMs !== null && restoreMs < ms);
}

/** Returns the one change that saves most. */
export function farChange(engine: FarEngine, rows: readonly FarOutlook[]): string {
  const { hasPrefixCache, askedTokens, hitTokens, bytesPerS, roundTripMs } = engine;
  if (hasPrefixCache === false) {
    return "start the engine with --enable-prefix-caching: without it nothing that was computed is used again";
  }
  const last = rows.at(-1);
  if (last === undefined || bytesPerS === null) {
    return "let this machine send the engine larger requests: its way to the engine could not be measured";
  }
  if (last.restoreMs === null) {
    return "name the model's config.json with --model: what it keeps of a token decides whether a restore is sooner";
  }
  const { tokens, ms, restMs, restoreMs } = last;
  const fixedMs = roundTripMs + restMs;
  const wireMs = restoreMs - fixedMs;
  if (fixedMs >= ms) {
    return `none: ${tokens} tokens are computed as fast as the engine answers at all`;
  }
  if (restoreMs >= ms) {
    const needed = (wireMs / Math.max(1, ms - fixedMs)) * (bytesPerS / GBIT);
    return `a faster link: from ${needed.toFixed(1)} Gb/s on, ${tokens} tokens are restored sooner than computed`;
  }
  if (askedTokens > 0 && hitTokens / askedTokens > HELD_ENOUGH) {
    return "none: the engine's own cache holds nearly all that is asked for";
  }
  const moreMs = wireMs * (1 - 1 / FASTER);
  if (moreMs > WORTH * ms) {
    return `a link ${FASTER} times as fast: beside the ${showMs(ms - restoreMs)} that this one saves at ${tokens} tokens, ${showMs(moreMs)} more`;
  }
  return `tierKV on the engine's machine, and a vault here: ${tokens} tokens that come back begin ${showMs(ms - restoreMs)} sooner`;
}

export function describeFar(engine: FarEngine, rows: readonly FarOutlook[]): string[] {
  const { model, longestTokens, askedTokens, hitTokens, bytesPerS, roundTripMs } = engine;
  const rate =
    bytesPerS === null
      ? "how fast bytes travel to it was not measured"
      : `bytes travel to it at ${showRate(bytesPerS)} or more`;
  const before =
    askedTokens === 0
      ? "It had computed no prompt before."
      : `Of ${askedTokens} prompt tokens so far its own cache held ${showShare(hitTokens / askedTokens)}.`;
  const shown = rows.map(({ tokens, ms, restoreMs, bytesPerTokenMost }) => [
    String(tokens),
    showMs(ms),
    orNone(restoreMs, showMs),
    orNone(restoreMs, (value) => `${(ms / value).toFixed(1)}x`),
    orNone(bytesPerTokenMost, showBytes),
  ]);
  const head = ["tokens", "computed", "restored", "gain", "bytes of KV per token"];
  const measured = rows.at(-1)?.tokens ?? 0;
  const beyond =
    measured + 1 < longestTokens
      ? [`  Prompts of ${measured + 1} to ${longestTokens} tokens were not measured.`]
      : [];
  return [
    `${model}: ${rate}; a request without a prompt takes ${showMs(roundTripMs)}.`,
    before,
    ...table([head, ...shown], "  "),
    ...beyond,
    "  Restored: a look-up, the transfer at that rate, and what the engine needs for a prompt that its own cache holds. Its",
    "  copying of blocks is not in it: `tierkv doctor` on the engine's machine measures that, once tierKV runs there.",
    "  Bytes of KV per token: at that length a restore is sooner than computing for models that keep fewer bytes of each token.",
    `What matters most: ${farChange(engine, rows)}.`,
  ];
}
