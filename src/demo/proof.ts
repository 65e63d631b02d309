// Owns the judgement: what was counted round each request, and whether it proves that a restore came from the vault.
import type { Answer, CacheHits } from "./engine.ts";
import { BLOCK_TOKENS } from "./engine.ts";
import type { Codec } from "./workspace.ts";

/** Counters of all parties at one moment; all of them only grow. */
export interface Snapshot {
  engine: CacheHits;
  sidecar: Readonly<Record<string, number>>;
  vault: Readonly<Record<string, number>>;
}

export type Kind = "cold" | "own" | "restore";

/** One request: what was measured, and how far each counter moved while it ran. */
export interface Trial {
  name: string;
  kind: Kind;
  /** Of the sidecar while the request ran. */
  codec: Codec;
  answer: Answer;
  moved: Moved;
}

export interface Moved {
  /** Prompt tokens the engine took from its own cache. */
  ownTokens: number;
  /** Prompt tokens the engine took through the connector. */
  restoredTokens: number;
  /** Blocks the sidecar fetched from the vault, and blocks that still lay in its memory. */
  vaultBlocks: number;
  localBlocks: number;
  /** Record bytes that travelled from the vault, as the sidecar and as the vault counted them. */
  fetchedBytes: number;
  servedBytes: number;
}

/** Share of the prompt's full blocks a restore must bring. */
const SHARE_MIN = 0.9;
/** INT8 takes 0.51 of bf16 and 0.26 of float32 at the demo's head dim. */
const INT8_BYTES_MAX = 0.6;

export function movedBetween(before: Snapshot, after: Snapshot): Moved {
  const grown = (party: "sidecar" | "vault", name: string): number =>
    (after[party][name] ?? 0) - (before[party][name] ?? 0);
  return {
    ownTokens: after.engine.own - before.engine.own,
    restoredTokens: after.engine.restored - before.engine.restored,
    vaultBlocks: grown("sidecar", "blocks_restored_vault"),
    localBlocks: grown("sidecar", "blocks_restored_local"),
    fetchedBytes: grown("sidecar", "bytes_fetched"),
    servedBytes: grown("vault", "fetched_bytes"),
  };
}

/** Tokens in full blocks: what a cache can hold of a prompt, whose last token is always computed. */
export function cacheableTokens(promptTokens: number): number {
  return Math.floor((promptTokens - 1) / BLOCK_TOKENS) * BLOCK_TOKENS;
}

/** How many leading token ids a trial shares with the engine's own hit, which computes the same tail of the prompt in the same shape. */
export function tokensAlike({ answer }: Trial, trials: readonly Trial[]): number {
  const own = trials.find(({ kind }) => kind === "own")?.answer.tokenIds ?? [];
  const first = own.findIndex((id, index) => id !== answer.tokenIds[index]);
  return first === -1 ? own.length : first;
}

export function hasSameTokens(trial: Trial, trials: readonly Trial[]): boolean {
  const own = trials.find(({ kind }) => kind === "own");
  return own !== undefined && String(own.answer.tokenIds) === String(trial.answer.tokenIds);
}

/** Everything that keeps the trials from proving the restores; empty when they prove them. */
export function findProblems(trials: readonly Trial[]): string[] {
  const problems = trials.flatMap((trial) =>
    JUDGES[trial.kind](trial, trials).map((problem) => `${trial.name}: ${problem}`),
  );
  const kinds: readonly Kind[] = ["cold", "own", "restore"];
  const missing = kinds.filter((kind) => !trials.some((trial) => trial.kind === kind));
  return [...problems, ...missing.map((kind) => `there was no ${kind} request`)];
}

type Judge = (trial: Trial, trials: readonly Trial[]) => string[];

const JUDGES: Readonly<Record<Kind, Judge>> = {
  cold: ({ moved }) =>
    when(moved.ownTokens + moved.restoredTokens > 0, "some of its prompt was cached already"),
  own: ({ answer, moved }) => [
    ...when(moved.restoredTokens > 0, "the connector was asked, not the engine's own cache"),
    ...tooFew(moved.ownTokens, answer, "came from the engine's own cache"),
  ],
  restore: (trial, trials) => {
    const { answer, moved } = trial;
    const restoredBlocks = moved.restoredTokens / BLOCK_TOKENS;
    return [
      ...when(moved.ownTokens > 0, `the engine's own cache still held ${moved.ownTokens} tokens`),
      ...when(moved.localBlocks > 0, `${moved.localBlocks} blocks came from the sidecar's memory`),
      ...tooFew(moved.restoredTokens, answer, "were restored"),
      ...when(
        moved.vaultBlocks < restoredBlocks,
        `${restoredBlocks} blocks restored, but only ${moved.vaultBlocks} came from the vault`,
      ),
      ...when(moved.fetchedBytes === 0, "the sidecar fetched no bytes"),
      ...when(moved.servedBytes === 0, "the vault served no bytes"),
      ...(trial.codec === "int8" ? tooLarge(trial, trials) : otherTokens(trial, trials)),
    ];
  },
};

/** Exact blocks give the tokens of the engine's own. */
const otherTokens: Judge = (trial, trials) =>
  when(!hasSameTokens(trial, trials), "its token ids differ from those of the engine's own hit");

/** INT8 may round a token differently, but must be worth it. */
const tooLarge: Judge = ({ moved }, trials) => {
  const exact = trials.find(({ kind, codec }) => kind === "restore" && codec === "raw");
  const exactBytes = exact?.moved.fetchedBytes ?? 0;
  return when(
    moved.fetchedBytes > exactBytes * INT8_BYTES_MAX,
    `${moved.fetchedBytes} bytes came as INT8, ${exactBytes} as they are`,
  );
};

function tooFew(tokens: number, { promptTokens }: Answer, what: string): string[] {
  const possible = cacheableTokens(promptTokens);
  return when(tokens <= possible * SHARE_MIN, `only ${tokens} of ${possible} tokens ${what}`);
}

function when(isProblem: boolean, problem: string): string[] {
  return isProblem ? [problem] : [];
}
