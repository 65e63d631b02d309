// Owns the result of the demo: the table for people, the object for machines.
import { showBytes, showCount, showRatio, showSeconds, table } from "./format.ts";
import { findProblems, hasSameTokens, tokensAlike } from "./proof.ts";
import type { Trial } from "./proof.ts";
import { readingProblems } from "./reading.ts";
import type { Reading } from "./reading.ts";

const HEAD = [
  "request",
  "tokens from own cache",
  "tokens restored",
  "bytes moved",
  "TTFT",
  "vs cold",
  "token ids",
];

/** The table, and below it what the token ids were compared with. */
export function resultLines(trials: readonly Trial[]): string[] {
  const coldMs = coldTtftMs(trials);
  const rows = trials.map((trial) => {
    const { name, answer, moved } = trial;
    return [
      name,
      showCount(moved.ownTokens),
      showCount(moved.restoredTokens),
      showBytes(moved.fetchedBytes),
      showSeconds(answer.ttftMs),
      showRatio(coldMs, answer.ttftMs),
      sameTokens(trial, trials),
    ];
  });
  return [
    ...table([HEAD, ...rows]),
    "",
    "TTFT: time to the first token of the streamed answer. Token ids: compared with the engine's own hit, which",
    "computes the same rest of the prompt; a cold run computes it in another shape and may round differently. INT8 brings",
    "back nearly the same values; random weights decide by chance between tokens, so a trained model judges it:",
  ];
}

function sameTokens(trial: Trial, trials: readonly Trial[]): string {
  if (trial.kind === "own") return "reference";
  if (hasSameTokens(trial, trials)) return "identical";
  return trial.codec === "int8" ? "see below" : "DIFFERENT";
}

/** What `tierkv demo --json` prints. */
export function resultObject(
  trials: readonly Trial[],
  readings: readonly Reading[],
  facts: object,
): object {
  const coldMs = coldTtftMs(trials);
  const problems = [...findProblems(trials), ...readingProblems(readings)];
  return {
    ok: problems.length === 0,
    ...facts,
    problems,
    requests: trials.map((trial) => ({
      name: trial.name,
      kind: trial.kind,
      codec: trial.codec,
      promptTokens: trial.answer.promptTokens,
      ttftMs: Math.round(trial.answer.ttftMs),
      ratioToCold: coldMs / trial.answer.ttftMs,
      isSameTokens: hasSameTokens(trial, trials),
      tokensAlike: tokensAlike(trial, trials),
      tokenIds: trial.answer.tokenIds,
      ...trial.moved,
    })),
    readings,
  };
}

function coldTtftMs(trials: readonly Trial[]): number {
  return trials.find(({ kind }) => kind === "cold")?.answer.ttftMs ?? Number.NaN;
}
