// Owns the proof: counters around each request, and whether they show that a restore came from the vault.
import type { Answer } from "../stand/engine.ts";
import { BLOCK_TOKENS } from "../stand/engine.ts";
import type { Snapshot } from "../stand/stage.ts";
import type { Codec } from "../stand/workspace.ts";

export type Kind = "cold" | "own" | "restore";

/** One request: its measurements, and each counter's change while it ran. */
export interface Trial {
  name: string;
  kind: Kind;
  /** Codec of the sidecar while the request ran. */
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

/** Prompt tokens in full blocks, which a cache can hold; the last token is always computed. */
export function cacheableTokens(promptTokens: number): number {
  return Math.floor((promptTokens - 1) / BLOCK_TOKENS) * BLOCK_TOKENS;
}

/** Leading token ids that a trial shares with the engine's own hit, which computes the same tail in the same shape. */
export function tokensAlike({ answer }: Trial, trials: readonly Trial[]): number {
  const own = trials.find(({ kind }) => kind === "own")?.answer.tokenIds ?? [];
  const first = own.findIndex((id, index) => id !== answer.tokenIds[index]);
  return first === -1 ? own.length : first;
}

export function hasSameTokens(trial: Trial, trials: readonly Trial[]): boolean {
  const own = trials.find(({ kind }) => kind === "own")?.answer.tokenIds ?? [];
  const { length } = trial.answer.tokenIds;
  return length === own.length && tokensAlike(trial, trials) === length;
}

/** Reasons why the trials do not prove the restores; empty when they do. */
export function findProblems(trials: readonly Trial[], kinds: readonly Kind[]): string[] {
  const problems = trials.flatMap((trial) =>
    problemsOf(trial, trials).map((problem) => `${trial.name}: ${problem}`),
  );
  const missing = kinds.filter((kind) => !trials.some((trial) => trial.kind === kind));
  return [...problems, ...missing.map((kind) => `there was no ${kind} request`)];
}

function problemsOf(trial: Trial, trials: readonly Trial[]): string[] {
  const { kind, codec, answer, moved } = trial;
  const { ownTokens, restoredTokens, vaultBlocks, localBlocks, fetchedBytes } = moved;
  const possible = cacheableTokens(answer.promptTokens);
  const blocks = restoredTokens / BLOCK_TOKENS;
  const isTooFew = (tokens: number): boolean => tokens <= possible * SHARE_MIN;
  const exact = trials.find((other) => other.kind === "restore" && other.codec === "raw");
  const exactBytes = exact?.moved.fetchedBytes ?? 0;
  const says: Readonly<Record<Kind, readonly [boolean, string][]>> = {
    cold: [[ownTokens + restoredTokens > 0, "some of its prompt was cached already"]],
    own: [
      [restoredTokens > 0, "the connector was asked, not the engine's own cache"],
      [isTooFew(ownTokens), `only ${ownTokens} of ${possible} tokens came from its own cache`],
    ],
    restore: [
      [ownTokens > 0, `the engine's own cache still held ${ownTokens} tokens`],
      [localBlocks > 0, `${localBlocks} blocks came from the sidecar's memory`],
      [isTooFew(restoredTokens), `only ${restoredTokens} of ${possible} tokens were restored`],
      [
        vaultBlocks < blocks,
        `${blocks} blocks restored, but only ${vaultBlocks} came from the vault`,
      ],
      [fetchedBytes === 0, "the sidecar fetched no bytes"],
      [moved.servedBytes === 0, "the vault served no bytes"],
      // Exact blocks give the same tokens as the engine's own; INT8 may differ, but must save bytes.
      codec === "raw"
        ? [!hasSameTokens(trial, trials), "its token ids differ from those of the engine's own hit"]
        : [
            fetchedBytes > exactBytes * INT8_BYTES_MAX,
            `${fetchedBytes} bytes came as INT8, ${exactBytes} as they are`,
          ],
    ],
  };
  return says[kind].flatMap(([isProblem, problem]) => (isProblem ? [problem] : []));
}
