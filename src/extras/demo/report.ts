// Owns the result of the demo: the tables for people, the object for machines.
import { dataText } from "../stand/data.ts";
import { showBytes, showCount, showRatio, showSeconds, table } from "./format.ts";
import { findProblems, hasSameTokens, tokensAlike } from "./proof.ts";
import type { Trial } from "./proof.ts";
import type { Reading } from "./scenario.ts";

/** Requests with a long text to a model of random weights, and a question to a model that people can read. */
export interface Result {
  trials: readonly Trial[];
  reading: Reading;
  /** Requests to a model with the KV of a published one; empty without --real-size. */
  real: readonly Trial[];
}

const HEAD = "request,tokens from own cache,tokens restored,bytes moved,TTFT,vs cold,token ids";
const NAME_WIDTH = 18;
const REAL_TITLE =
  "A model with the KV of Llama-3.1-8B (32 layers, 8 KV heads of 128: 128 KiB a token) and next to no compute:";

const KINDS = ["cold", "own", "restore"] as const;

export function problemsIn({ trials, reading, real }: Result): string[] {
  const atSize = real.length === 0 ? [] : findProblems(real, KINDS);
  return [
    ...findProblems(trials, KINDS),
    ...atSize.map((problem) => `KV of Llama-3.1-8B, ${problem}`),
    ...findProblems(reading.trials, KINDS).map((problem) => `model that reads, ${problem}`),
  ];
}

/** The table, followed by the texts whose token ids were compared. */
export function resultLines({ trials, reading, real }: Result): string[] {
  const { reader, asked, trials: readings } = reading;
  const tokens = readings[0]?.answer.promptTokens ?? 0;
  const passedOver = reader.passedOver.map((reason) => `Passed over: ${reason}.`);
  return [
    ...tableOf(trials),
    ...(real.length === 0 ? [] : ["", REAL_TITLE, "", ...tableOf(real)]),
    ...dataText("src/extras/demo/data/notes.txt").trimEnd().split("\n"),
    "",
    ...passedOver,
    reader.what,
    `${asked} (${showCount(tokens)} tokens)`,
    ...readings.map((trial) => `  ${trial.name.padEnd(NAME_WIDTH)} ${answerLine(trial, readings)}`),
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
function answerLine(trial: Trial, readings: readonly Trial[]): string {
  const { text, tokenIds } = trial.answer;
  if (trial.kind === "own") return `${JSON.stringify(text)} (the reference)`;
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
  const { reader, asked, trials: answers } = result.reading;
  const readings = answers.map((trial) => object(trial, answers));
  const read = { model: reader.what, passedOver: reader.passedOver, asked };
  return {
    ok: problems.length === 0,
    ...facts,
    problems,
    requests: compared(result.trials),
    realSize: compared(result.real),
    reading: read,
    readings,
  };
}

function coldTtftMs(trials: readonly Trial[]): number {
  return trials.find(({ kind }) => kind === "cold")?.answer.ttftMs ?? Number.NaN;
}
