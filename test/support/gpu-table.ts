// Owns the GPU part of docs/compatibility.md: results from bench/results/gpu.json, and the missing ones by name.
import { readFileSync } from "node:fs";

/** A prompt that was computed, found in the engine's own cache, and restored; null: not restored in that run. */
interface Cell {
  tokens: number;
  restored: { "not computed": readonly number[] } | null;
}

interface Run {
  compilation_mode?: string;
  raw?: readonly Cell[];
  cells?: readonly Cell[];
}

export interface GpuResults {
  date: string;
  kit: { device: string };
  engine: Readonly<Record<string, Run>>;
  "earlier the same day": Readonly<Record<string, Run>>;
}

export function readGpuResults(): GpuResults {
  const path = new URL("../../bench/results/gpu.json", import.meta.url);
  return JSON.parse(readFileSync(path, "utf8")) as GpuResults;
}

/** Share of a prompt that must come back for a "yes". */
const RESTORED_MIN = 0.95;
const LENGTHS = [8192, 32_768, 100_000] as const;
/** Time of the fix; earlier runs say nothing about it. */
const MENDED = "2026-11-26, 18:32 UTC";

/** Measured lines, each with the run that has it. */
const ROWS: readonly (readonly [what: string, run: (results: GpuResults) => Run | undefined])[] = [
  ["Llama, bf16 cache, stored as it is", ({ engine }) => engine["llama-3.1-8b"]],
  ["Llama, fp8 cache, stored as it is", ({ engine }) => engine["llama-3.1-8b, fp8 cache"]],
  [
    "Llama, bf16 cache, stored as INT8 (`int8-had`, replaced since)",
    ({ "earlier the same day": of }) => of["int8-had"],
  ],
  ["Qwen3.5 (recurrent states and attention)", ({ engine }) => engine["qwen3.5-9b, no vault"]],
  ["with `torch.compile`", ({ engine }) => compiled(engine)],
  ["other attention kernels (FlashInfer, MLA)", () => undefined],
  ["several GPUs (tensor or pipeline parallel)", () => undefined],
  ["any of these, after long restores were mended", () => undefined],
];

function compiled(runs: Readonly<Record<string, Run>>): Run | undefined {
  return Object.values(runs).find(({ compilation_mode: mode = "0" }) => mode !== "0");
}

function cellOf(run: Run | undefined, tokens: number): string {
  const found = (run?.raw ?? run?.cells ?? []).find((cell) => cell.tokens === tokens)?.restored;
  if (found === undefined || found === null) return "not run";
  const least = Math.min(...found["not computed"]);
  if (least >= RESTORED_MIN * tokens) return "yes";
  return `in part: ${least.toLocaleString("en")}`;
}

export function gpuTable(results: GpuResults): string {
  const head = ["tokens restored of a prompt of", ...LENGTHS.map((n) => n.toLocaleString("en"))];
  const rows = ROWS.map(([what, run]) => [what, ...LENGTHS.map((n) => cellOf(run(results), n))]);
  const lines = [head, head.map(() => "---"), ...rows].map((row) => `| ${row.join(" | ")} |`);
  return `${lines.join("\n")}

These runs were on one ${results.kit.device} before ${MENDED}, with vLLM 0.32.0, runner V2, FlashAttention 3 and asynchronous scheduling. "In part" comes from a fault of the connector: long restores
ended at the first block for which no slot had been free. The fault was mended afterwards, and a CPU showed it ([bench/gpu](../bench/gpu/README.md)); no GPU has run the mended connector.`;
}
