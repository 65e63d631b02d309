// Owns what an engine's shared memory, its saves and the link allow for its longest prompt, as `tierkv doctor` says it.
import type { EngineStatus } from "../sidecar/engine/engine-status.ts";
import { showBytes, showMs, showRate } from "./text.ts";

/** Bytes are those of the engine's pages. */
export interface Allowance {
  promptTokens: number;
  /** What of it is saved: all blocks of attention. */
  promptBytes: number;
  /** Until a vault has it; null: no vault was measured. */
  saveS: number | null;
  arenaBytes: number;
  /** Of them, those that saves may fill. */
  saveBytes: number;
  /** How many restores of it fit beside each other. */
  prompts: number;
  /** Tokens of the longest prompt that is restored whole. */
  wholeTokens: number;
  /** What one step computes, and may copy for saves. */
  stepBytes: number;
}

/** null: it has no shared memory yet. `saveBytesPerS`: of pages, by all vaults for attention. */
export function allowanceOf(engine: EngineStatus, saveBytesPerS: number | null): Allowance | null {
  const { arena, forecast, groups, stepTokens } = engine;
  const longest = forecast.at(-1);
  if (arena === null || longest === undefined) return null;
  const { slotBytes, slotCount, saveSlots } = arena;
  const bytesOf = (promptTokens: number): number =>
    groups.reduce((sum, { class: of, tokens, bytes }) => {
      return of === "kv" ? sum + Math.floor(promptTokens / tokens) * bytes : sum;
    }, 0);
  const promptBytes = bytesOf(longest.tokens);
  return {
    promptTokens: longest.tokens,
    promptBytes,
    saveS: saveBytesPerS === null ? null : promptBytes / saveBytesPerS,
    arenaBytes: arena.bytes,
    saveBytes: saveSlots * slotBytes,
    prompts: (slotCount - saveSlots) / Math.max(1, longest.slots),
    wholeTokens: arena.longestTokens,
    stepBytes: bytesOf(stepTokens),
  };
}

export function describeAllowance(allowance: Allowance): string[] {
  const { promptTokens, promptBytes, saveS, arenaBytes, saveBytes, prompts, wholeTokens } =
    allowance;
  const rate = saveS === null ? 0 : promptBytes / saveS;
  const saved = saveS === null ? "" : `: saved in ${showMs(saveS * 1000)} at ${showRate(rate)}`;
  const holds =
    prompts >= 1
      ? `holds ${prompts.toFixed(1)} of them`
      : `restores the first ${wholeTokens} tokens of them`;
  return [
    `a prompt of ${promptTokens} tokens is ${showBytes(promptBytes)}${saved}`,
    `shared memory of ${showBytes(arenaBytes)} ${holds}, beside ${showBytes(saveBytes)} for saves; a step computes ${showBytes(allowance.stepBytes)} at most`,
  ];
}
