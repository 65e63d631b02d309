// Owns the judgement of the trained model's answers: the same readable text from computed, exact and INT8 blocks.
import { showBytes } from "./format.ts";
import type { Codec } from "./workspace.ts";

/** One answer of the trained model. */
export interface Reading {
  /** Null: computed, and the reference of all others. */
  codec: Codec | null;
  promptTokens: number;
  restoredTokens: number;
  fetchedBytes: number;
  text: string;
  tokens: number;
  /** How many of its first tokens are the reference's. */
  tokensAlike: number;
}

const NAMES: Readonly<Record<Codec, string>> = { raw: "restored", int8: "restored as INT8" };
const NAME_WIDTH = 18;

/** What a person reads: how many tokens are the same, and the text of each answer. */
export function readingLines(readings: readonly Reading[]): string[] {
  const promptTokens = readings[0]?.promptTokens ?? 0;
  return [
    "",
    `A small model that was trained (bench/fidelity) goes on with ${promptTokens} tokens of Python:`,
    ...readings.map((reading) => {
      const name = reading.codec === null ? "computed" : NAMES[reading.codec];
      return `  ${name.padEnd(NAME_WIDTH)} ${JSON.stringify(reading.text)}${sameness(reading)}`;
    }),
  ];
}

function sameness({ codec, tokens, tokensAlike, fetchedBytes }: Reading): string {
  if (codec === null) return "";
  const alike = tokensAlike === tokens ? "the same" : `first ${tokensAlike} of`;
  return ` (${alike} ${tokens} tokens, ${showBytes(fetchedBytes)} moved)`;
}

/** Everything that keeps the answers from proving the restores; empty when they prove them. */
export function readingProblems(readings: readonly Reading[]): string[] {
  return readings.flatMap(({ codec, restoredTokens, tokens, tokensAlike }) => {
    if (codec === null) return [];
    const problems: string[] = [];
    if (restoredTokens === 0) problems.push("nothing was restored");
    if (codec === "raw" && tokensAlike < tokens)
      problems.push("its text differs from the computed");
    return problems.map((problem) => `trained model, ${NAMES[codec]}: ${problem}`);
  });
}
