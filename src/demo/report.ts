// Owns the result of the demo: the tables for people, the object for machines.
import { dataText } from "../stand/data.ts";
import { showBytes, showCount, showRatio, showSeconds, table } from "./format.ts";
import { findProblems, hasSameTokens, tokensAlike } from "./proof.ts";
import type { Trial } from "./proof.ts";

/** Requests with a long text to a model of random weights, and with a readable text to a trained one. */
export interface Result {
  trials: readonly Trial[];
  readings: readonly Trial[];
  /** Requests to a model with the KV of a published one; empty without --real-size. */
  real: readonly Trial[];
}

const HEAD = "request,tokens from own cache,tokens restored,bytes moved,TTFT,vs cold,token ids";
const NAME_WIDTH = 18;
const REAL_TITLE =
  "A model with the KV of Llama-3.1-8B (32 layers, 8 KV heads of 128: 128 KiB a token) and next to no compute:";

const KINDS = ["cold", "own", "restore"] as const;

export function problemsIn({ trials, readings, real }: Result): string[] {
  const atSize = real.length === 0 ? [] : findProblems(real, KINDS);
  return [
    ...findProblems(trials, KINDS),
    ...atSize.map((problem) => `KV of Llama-3.1-8B, ${problem}`),
    ...findProblems(readings, ["own", "restore"]).map((problem) => `trained model, ${problem}`),
  ];
}

/** The table, followed by the texts whose token ids were compared. */
export function resultLines({ trials, readings, real }: Result): string[] {
  const tokens = readings[0]?.answer.promptTokens ?? 0;
  return [
    ...tableOf(trials),
    ...(real.length === 0 ? [] : ["", REAL_TITLE, "", ...tableOf(real)]),
    ...dataText("src/demo/data/notes.txt", { tokens }).trimEnd().split("\n"),
    ...readings.map((trial) => `  ${trial.name.padEnd(NAME_WIDTH)} ${reading(trial, readings)}`),
  ];
}

function tableOf(trials: readonly Trial[]): string[] {
  const coldMs = coldTtftMs(trials);
  const rows = trials.map((trial) => [
    trial.name,
    showCount(trial.moved.ownTokens),
    showCount(trial.moved.restoredTokens),
    showBytes(trial.moved.fetchedBytes),
    showSeconds(trial.answer.ttftMs),
    showRatio(coldMs, trial.answer.ttftMs),
    sameTokens(trial, trials),
  ]);
  return table([HEAD.split(","), ...rows]);
}

function sameTokens(trial: Trial, trials: readonly Trial[]): string {
  if (trial.kind === "own") return "reference";
  if (hasSameTokens(trial, trials)) return "identical";
  return trial.codec === "int8" ? "see below" : "DIFFERENT";
}

/** One line of a reading: its text, and how many tokens are the same. */
function reading(trial: Trial, readings: readonly Trial[]): string {
  const { text, tokenIds } = trial.answer;
  if (trial.kind === "own") return JSON.stringify(text);
  const isSame = hasSameTokens(trial, readings);
  const alike = isSame ? "the same" : `first ${tokensAlike(trial, readings)} of`;
  const bytes = showBytes(trial.moved.fetchedBytes);
  return `${JSON.stringify(text)} (${alike} ${tokenIds.length} tokens, ${bytes} moved)`;
}

/** The object that `tierkv demo --json` prints. */
export function resultObject(result: Result, facts: object): object {
  const problems = problemsIn(result);
  const object = (trial: Trial, trials: readonly Trial[]): object => ({
    name: trial.name,
    kind: trial.kind,
    codec: trial.codec,
    ...trial.answer,
    isSameTokens: hasSameTokens(trial, trials),
    tokensAlike: tokensAlike(trial, trials),
    ...trial.moved,
  });
  const compared = (trials: readonly Trial[]): object[] =>
    trials.map((trial) => ({
      ...object(trial, trials),
      ratioToCold: coldTtftMs(trials) / trial.answer.ttftMs,
    }));
  const readings = result.readings.map((trial) => object(trial, result.readings));
  return {
    ok: problems.length === 0,
    ...facts,
    problems,
    requests: compared(result.trials),
    realSize: compared(result.real),
    readings,
  };
}

function coldTtftMs(trials: readonly Trial[]): number {
  return trials.find(({ kind }) => kind === "cold")?.answer.ttftMs ?? Number.NaN;
}
