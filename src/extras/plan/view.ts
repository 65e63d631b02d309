// Owns the output of `tierkv plan`: sizes of tokens, prompts and vaults, and forecasts from a trace or a running sidecar.
import { orNone, showBytes, showMs, showShare, table } from "../../base/text.ts";
import type { Config } from "../../config/config.ts";
import type { VaultStatus } from "../../sidecar/status.ts";
import type { ReuseStatus } from "../../sidecar/trace/reuse.ts";
import type { TraceForecast } from "./forecast.ts";
import { showLink } from "./inputs.ts";
import type { ModelShape } from "./model.ts";
import { bucketRequests, valkeyRecordBytes } from "./stores.ts";
import type { Block, StoreForecast } from "./stores.ts";

/** Sizes of one model, from its config.json or a running engine. */
export interface Weigher {
  name: string;
  /** null: a running engine, which reports only stored sizes. */
  shape: ModelShape | null;
  /** Bytes of each token in a vault. */
  tokenBytes: number;
  /** Whether `tokenBytes` is an upper bound, because no record was measured yet. */
  isMost: boolean;
  /** Bytes of each boundary in a vault; 0: no recurrent states. */
  stateBytes: number;
  /** Blocks of attention KV, by group, as a store keeps them. */
  blocks: readonly Block[];
  /** Longest prompt, in tokens, that the engine takes; Infinity: not known. */
  longestTokens: number;
  engineBytes(tokens: number): number | null;
  restoredBytes(tokens: number): number;
  /** null: not known. */
  computeS: ((tokens: number) => number) | null;
}

export interface PromptRow {
  tokens: number;
  engineBytes: number | null;
  wireBytes: number;
  /** Seconds on each link. */
  seconds: number[];
  computeS: number | null;
}

export interface VaultRow {
  bytes: number;
  tokens: number;
}

export interface ReuseRow {
  bytes: number;
  /** Share of the blocks asked for again with at most `bytes` stored in between. */
  share: number;
}

const KIB = 1024;

/** Shows kB and KiB, because both are in use and differ visibly at this size. */
const showToken = (bytes: number): string =>
  `${showBytes(bytes)} (${(bytes / KIB).toFixed(1)} KiB)`;

const SMALLER = "; about half as INT8, with a certificate or [turbo_quant] enabled = true";

/** Returns what to say where blocks are counted as the engine has them, although INT8 is possible. */
function smallerForm(shape: ModelShape | null): string {
  if (shape?.attention !== "heads" || shape.valueBytes === 1) return "";
  const parts = [shape.full, ...(shape.windows === null ? [] : [shape.windows])];
  const isExact = parts.every(({ storedBytes, engineBytes }) => storedBytes === engineBytes);
  return isExact ? SMALLER : "";
}

export function describeModel({ name, shape, tokenBytes, stateBytes, isMost }: Weigher): string[] {
  const most = isMost ? " at most: how small its records are is known after its first restore" : "";
  const inVault = `${showToken(tokenBytes)} in a vault${most}${smallerForm(shape)}`;
  const boundary =
    stateBytes === 0
      ? []
      : [`  each boundary kept: ${showBytes(stateBytes)} of recurrent states in a vault`];
  if (shape === null) return [`${name}: a running engine`, `  a token: ${inVault}`, ...boundary];
  const { full, windows, states, attention, valueBytes } = shape;
  const kind = attention === "latent" ? " of latent attention (MLA)" : "";
  const parts = [
    ...(full.layers > 0 ? [`${full.layers} full layers${kind}`] : []),
    ...(windows === null ? [] : [`${windows.layers} layers with a window of ${windows.tokens}`]),
    ...(states === null ? [] : [`${states.layers} layers with a recurrent state`]),
  ];
  const engine = full.engineBytes + (windows?.engineBytes ?? 0);
  const ofWindows = windows === null ? "" : `, ${showToken(full.engineBytes)} beyond the window`;
  return [
    `${name}: ${parts.join(", ")}; ${8 * valueBytes}-bit values`,
    `  a token: ${showToken(engine)} in the engine${ofWindows}; ${inVault}`,
    ...boundary,
  ];
}

const showSeconds = (seconds: number): string => showMs(seconds * 1000);

export function describePrompts(rows: readonly PromptRow[], links: readonly number[]): string[] {
  const hasEngine = rows.some(({ engineBytes }) => engineBytes !== null);
  const hasPace = rows.some(({ computeS }) => computeS !== null);
  const head = [
    "prompt",
    ...(hasEngine ? ["in the engine"] : []),
    "to restore",
    ...links.map((link) => `at ${showLink(link)}`),
    ...(hasPace ? ["computed"] : []),
  ];
  const cells = rows.map((row) => [
    String(row.tokens),
    ...(hasEngine ? [orNone(row.engineBytes, showBytes)] : []),
    showBytes(row.wireBytes),
    ...row.seconds.map(showSeconds),
    ...(hasPace ? [orNone(row.computeS, showSeconds)] : []),
  ]);
  return table([head, ...cells], "  ");
}

/** Prompt length by which a vault's capacity is counted. */
const PROMPT_TOKENS = 32_000;

export function describeVaults(rows: readonly VaultRow[]): string[] {
  const head = ["vault", "holds tokens", `prompts of ${PROMPT_TOKENS}`];
  const cells = rows.map(({ bytes, tokens }) => [
    showBytes(bytes),
    String(Math.floor(tokens)),
    String(Math.floor(tokens / PROMPT_TOKENS)),
  ]);
  return table([head, ...cells], "  ");
}

/** Describes the nodes of Valkey and the bucket that hold the same as vaults. */
export function describeStores(
  { bytes: nodeBytes, replicas, rows }: StoreForecast,
  blocks: readonly Block[],
): string[] {
  const head = [
    "records",
    "holds tokens",
    "memory in Valkey",
    `primaries of ${showBytes(nodeBytes)}`,
    "nodes in all",
    "in a bucket",
    "objects",
  ];
  const cells = rows.map((row) => [
    showBytes(row.bytes),
    String(Math.floor(row.tokens)),
    showBytes(row.valkeyBytes),
    String(row.primaries),
    String(row.nodes),
    showBytes(row.bucketBytes),
    String(row.bucketObjects),
  ]);
  const records = blocks.map(
    ({ bytes, tokens }) =>
      `${tokens} tokens ${showBytes(bytes)}, in Valkey ${showBytes(valkeyRecordBytes(bytes))}`,
  );
  const each = replicas === 1 ? "a replica" : `${replicas} replicas`;
  return [
    `  A record of ${records.join("; one of ")}. Each primary has ${each}. A prompt of ${PROMPT_TOKENS} tokens takes ${bucketRequests(blocks, PROMPT_TOKENS)} requests to a bucket.`,
    ...table([head, ...cells], "  "),
  ];
}

type Redundancy = Config["cluster"]["redundancy"];

/** Describes the capacity of this machine's pool; empty for a single vault, or while a size is unknown. */
export function describePool(
  vaults: readonly VaultStatus[],
  tokenBytes: number,
  redundancy: Redundancy,
): string[] {
  const members = vaults.filter(({ tier, share }) => tier !== "shared" && share > 0);
  const sizes = members.flatMap(({ seen }) =>
    seen === null ? [] : [Math.max(seen.maxBytes, seen.disk?.maxBytes ?? 0)],
  );
  if (members.length < 2 || sizes.length < members.length) return [];
  const bytes = sizes.reduce((sum, size) => sum + size, 0);
  const tokens = Math.floor(bytes / tokenBytes / (redundancy === "copies:2" ? 2 : 1));
  const kept = redundancy === "none" ? "" : ` with redundancy = "${redundancy}"`;
  const all = `${members.length} vaults of this pool (${showBytes(bytes)} in all)`;
  return [`  ${all} hold ${tokens} tokens${kept}`];
}

/** `vaults`: in the order of the forecast's sizes, without the last, which is infinite. */
export function describeForecast(
  forecast: TraceForecast,
  vaults: readonly VaultRow[],
  links: readonly number[],
  tokenBytes: number,
): string[] {
  const { requests, tokens, distinctTokens, engineHitTokens, sizes } = forecast;
  const all = `${showBytes(distinctTokens * tokenBytes)} for all of it`;
  const own =
    engineHitTokens === 0
      ? []
      : [
          `  ${showShare(engineHitTokens / tokens)} of the prompt tokens come from the engine itself`,
        ];
  const hasPace = sizes.some(({ savedS }) => savedS !== null);
  const saves = hasPace ? links.map((link) => `saves at ${showLink(link)}`) : [];
  const cells = sizes.map(({ hitTokens, savedS }, at) => [
    vaults[at] === undefined ? "endless" : showBytes(vaults[at].bytes),
    showShare(hitTokens / tokens),
    String(hitTokens),
    ...(savedS ?? []).map(showSeconds),
  ]);
  return [
    `  ${requests} requests, ${tokens} prompt tokens, ${distinctTokens} of them different: ${all}`,
    ...own,
    ...table([["vault", "hit rate", "tokens restored", ...saves], ...cells], "  "),
    ...(hasPace ? [] : ["  Seconds saved: add --prefill with the engine's tokens per second."]),
  ];
}

/** Returns the sidecar's reuse by the bounds of its histogram; empty: no block was asked for again. */
export function reuseRows({ storedBytes: { held, gone } }: ReuseStatus): ReuseRow[] {
  const all = held.count + gone.count;
  if (all === 0) return [];
  let within = 0;
  return held.bounds.map((bytes, at) => {
    within += (held.counts[at] ?? 0) + (gone.counts[at] ?? 0);
    return { bytes, share: within / all };
  });
}

export function describeReuse(rows: readonly ReuseRow[], { storedBytes }: ReuseStatus): string[] {
  const { held, gone } = storedBytes;
  const all = held.count + gone.count;
  if (rows.length === 0) return ["No block was asked for twice yet: use the engine for a while."];
  const most = rows.findIndex(({ share }) => share >= 1);
  const shown = most < 0 ? rows : rows.slice(0, most + 1);
  const cells = shown.map(({ bytes, share }) => [showBytes(bytes), showShare(share)]);
  return [
    `Blocks that were asked for again (a sample): ${all}. Still held: ${held.count}; evicted or lost: ${gone.count}.`,
    `Bytes stored between two uses say what size would hold them; sizes are counted from ${showBytes(held.bounds[0] ?? 0)} on:`,
    ...table([["a vault of", "would hold"], ...cells], "  "),
  ];
}
