// Owns the limits that shared memory, saves and the link set for an engine's longest prompt, as `tierkv doctor` reports them.
import { showBytes, showMs, showRate } from "../../base/text.ts";
import type { EngineStatus } from "../../sidecar/engine/engine-status.ts";

/** All byte counts are of the engine's pages, before encoding. */
export interface Allowance {
  /** Length of the engine's longest prompt. */
  promptTokens: number;
  /** Bytes saved of that prompt: all its attention blocks. */
  promptBytes: number;
  /** Seconds until the vaults hold it; null: no vault was measured. */
  saveS: number | null;
  /** Shared memory of the engine. */
  arenaBytes: number;
  /** The part of `arenaBytes` that saves may fill. */
  saveBytes: number;
  /** Number of its restores that fit at the same time. */
  prompts: number;
  /** Tokens of the longest prompt that is restored whole. */
  wholeTokens: number;
  /** Bytes that one engine step computes at most, and may copy for saves. */
  stepBytes: number;
}

/** null: the engine has no shared memory yet. `saveBytesPerS`: page bytes that all attention vaults take together. */
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
  const saved =
    saveS === null
      ? ""
      : `: saved in ${showMs(saveS * 1000)}, as its blocks go to the vaults at ${showRate(rate)}, measured now`;
  const holds =
    prompts >= 1
      ? `holds ${prompts.toFixed(1)} of them`
      : `restores the first ${wholeTokens} tokens of them`;
  return [
    `a prompt of ${promptTokens} tokens is ${showBytes(promptBytes)} in the engine${saved}`,
    `shared memory of ${showBytes(arenaBytes)} ${holds}, beside ${showBytes(saveBytes)} for saves; a step computes ${showBytes(allowance.stepBytes)} at most`,
  ];
}
