// Owns the result of the demo: the table for people, the object for machines.
import { showBytes, showCount, showRatio, showSeconds, table } from "./format.ts";
import { findProblems, hasSameTokens } from "./proof.ts";
import type { Trial } from "./proof.ts";

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
    "computes the same rest of the prompt; a cold run computes it in another shape and may round differently.",
  ];
}

function sameTokens(trial: Trial, trials: readonly Trial[]): string {
  if (trial.kind === "own") return "reference";
  return hasSameTokens(trial, trials) ? "identical" : "DIFFERENT";
}

/** What `tierkv demo --json` prints. */
export function resultObject(trials: readonly Trial[], facts: object): object {
  const coldMs = coldTtftMs(trials);
  const problems = findProblems(trials);
  return {
    ok: problems.length === 0,
    ...facts,
    problems,
    requests: trials.map((trial) => ({
      name: trial.name,
      kind: trial.kind,
      promptTokens: trial.answer.promptTokens,
      ttftMs: Math.round(trial.answer.ttftMs),
      ratioToCold: coldMs / trial.answer.ttftMs,
      isSameTokens: hasSameTokens(trial, trials),
      tokenIds: trial.answer.tokenIds,
      ...trial.moved,
    })),
  };
}

function coldTtftMs(trials: readonly Trial[]): number {
  return trials.find(({ kind }) => kind === "cold")?.answer.ttftMs ?? Number.NaN;
}
