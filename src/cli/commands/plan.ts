// Owns `tierkv plan`: sizes of a model's prompts, capacities of vaults and stores, and a forecast of restores from a trace.
import { Option } from "commander";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { FAR_BLOCK_TOKENS } from "../../base/limits/tools.ts";
import type { Config } from "../../config/config.ts";
import { askSidecar, statusSeen } from "../../control/ask-sidecar.ts";
import {
  countOf,
  forecastTrace,
  linksOf,
  replicasOf,
  shapeAt,
  sizeOf,
} from "../../extras/plan/inputs.ts";
import type { ModelShape, ValueBytes } from "../../extras/plan/model.ts";
import { forecastStores } from "../../extras/plan/stores.ts";
import type { Block, Nodes } from "../../extras/plan/stores.ts";
import { TRACE_BLOCK_TOKENS } from "../../extras/plan/trace.ts";
import {
  describeForecast,
  describeModel,
  describePool,
  describePrompts,
  describeReuse,
  describeStores,
  describeVaults,
  reuseRows,
} from "../../extras/plan/view.ts";
import type { PromptRow, VaultRow, Weigher } from "../../extras/plan/view.ts";
import {
  engineBytes,
  interpolated,
  restoredBytes,
  storedBlocks,
  storedBytesPerToken,
  travelS,
} from "../../extras/plan/weight.ts";
import type { EngineStatus } from "../../sidecar/engine/engine-status.ts";
import { chooseCodecs } from "../../sidecar/save/codecs.ts";
import type { SidecarStatus } from "../../sidecar/status.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { Progress } from "../shell/progress.ts";

const GB = 1e9;
const VAULTS_DEFAULT = [8, 16, 32, 64, 128, 256, 512, 1024].map((size) => size * GB);
const PROMPTS = [4096, 32_768, 131_072];
const VALUE_BYTES: Readonly<Record<string, ValueBytes>> = { fp8: 1, bf16: 2, f32: 4 };

interface PlanFlags {
  model?: string;
  socket?: string;
  kvDtype?: string;
  vault?: string;
  links?: string;
  prefill?: string;
  trace?: string;
  blockTokens?: string;
  engineCache?: string;
  node?: string;
  replicas?: string;
  engineBlock?: string;
}

export function addPlan(program: Command): void {
  program
    .command("plan")
    .summary("forecast the tokens that vaults hold and the time that they save")
    .description(
      "With --model, reads the model's config.json and forecasts KV sizes of tokens and prompts, transfer times, and\n" +
        "the tokens that vaults hold. Without --model, forecasts the same for the engines of this machine's sidecar, and\n" +
        "the vault size that their repeated blocks needed. With --trace, forecasts hit rate and saved seconds by vault\n" +
        "size, with least-recently-used eviction. With --node, also forecasts the Valkey nodes and the bucket that hold\n" +
        "the same. Starts nothing and stores nothing.",
    )
    .option("--model <path>", "config.json of a Hugging Face model, or its folder")
    .option("--socket <path>", "sidecar's socket, without --model (default: [sidecar] socket)")
    .addOption(
      new Option(
        "--kv-dtype <type>",
        "type of the engine's KV values, if config.json does not name it",
      ).choices(Object.keys(VALUE_BYTES)),
    )
    .option("--vault <size>", "one vault size, like 24GB, instead of a table of sizes")
    .option("--links <rates>", "link rates in Gb/s for the forecast (default: 1,10)")
    .option("--prefill <rate>", "engine's prefill rate, in prompt tokens per second")
    .option("--trace <file>", "file of requests in Mooncake's format, one JSON object per line")
    .option("--block-tokens <n>", `tokens per block of the trace (default: ${TRACE_BLOCK_TOKENS})`)
    .option("--engine-cache <size>", "size of the engine's own KV cache; its hits need no vault")
    .option("--node <size>", "memory of one Valkey node for records (maxmemory), like 64GB")
    .option("--replicas <n>", "replicas of each Valkey primary, with --node (default: 1)")
    .option(
      "--engine-block <n>",
      `tokens per block of the engine, with --model and --node (default: ${FAR_BLOCK_TOKENS})`,
    )
    .example("tierkv plan --model config.json --trace requests.jsonl --prefill 8000")
    .does(plan);
}

/** Names the way that needs no running engine. */
function withoutSidecar(error: unknown): never {
  const known = toTierkvError(error);
  if (known.code !== "SIDECAR_DOWN") throw known;
  const { path = "", reason = "" } = known.details;
  const fix =
    "start an engine with tierKV, or plan without one: `tierkv plan --model config.json`, the file of a model";
  throw new TierkvError("SIDECAR_DOWN", { path, reason, fix }, { cause: error });
}

async function plan(call: Call<PlanFlags>): Promise<boolean> {
  const { options } = call;
  const config = call.loadConfig();
  const links = linksOf(options.links);
  const nodes = nodesOf(options);
  const pace = options.prefill === undefined ? null : countOf("--prefill", options.prefill);
  const linear = pace === null ? null : (tokens: number): number => tokens / pace;
  const isRunning = options.model === undefined;
  const status = isRunning
    ? await askSidecar(options.socket ?? call.sidecarSocket(), statusSeen).catch(withoutSidecar)
    : null;
  const weighers =
    status === null
      ? [ofModel(shapeOf(options, chooseCodecs(config).isLossy), linear, engineBlockOf(options))]
      : status.engines.flatMap((engine) => ofEngine(engine, linear));
  const models: Planned[] = [];
  const poolOf = poolIn(config, status);
  for (const weigher of weighers)
    models.push(await planFor(call, weigher, { links, nodes }, poolOf));
  const reuse = status === null ? null : reuseRows(status.reuse);
  const lines = [
    ...models.flatMap((model) => model.lines),
    ...(weighers.length === 0 ? [NO_ENGINE] : []),
    ...(status === null || reuse === null || weighers.length === 0
      ? []
      : describeReuse(reuse, status.reuse)),
  ];
  call.print({ linksBitsPerS: links, models: models.map(({ result }) => result), reuse }, lines);
  return weighers.length > 0;
}

/** null: no store is planned. */
function nodesOf({ model, node, replicas, engineBlock }: PlanFlags): Nodes | null {
  const needsNode = { "--replicas": replicas, "--engine-block": engineBlock };
  for (const [option, value] of Object.entries(needsNode)) {
    if (value === undefined || node !== undefined) continue;
    const fix = "add --node with the memory of a Valkey node, like 64GB";
    throw new TierkvError("USAGE", { reason: `${option} ${value.slice(0, 40)}: ${fix}` });
  }
  if (engineBlock !== undefined && model === undefined) {
    const reason = `--engine-block ${engineBlock.slice(0, 40)}: a running engine tells its blocks: leave it out, or add --model`;
    throw new TierkvError("USAGE", { reason });
  }
  if (node === undefined) return null;
  return { bytes: sizeOf("--node", node), replicas: replicasOf(replicas ?? "1") };
}

function engineBlockOf({ engineBlock }: PlanFlags): number {
  return engineBlock === undefined ? FAR_BLOCK_TOKENS : countOf("--engine-block", engineBlock);
}

type PoolOf = (weigher: Weigher) => string[];

function poolIn({ cluster }: Config, status: SidecarStatus | null): PoolOf {
  const vaults = status?.vaults.kv ?? [];
  return ({ tokenBytes }) => describePool(vaults, tokenBytes, cluster.redundancy);
}

interface Asked {
  /** Bits a second. */
  links: readonly number[];
  nodes: Nodes | null;
}

interface Planned {
  result: object;
  lines: string[];
}

async function planFor(
  call: Call<PlanFlags>,
  weigher: Weigher,
  { links, nodes }: Asked,
  poolOf: PoolOf,
): Promise<Planned> {
  const { vault } = call.options;
  const bytes = vault === undefined ? VAULTS_DEFAULT : [sizeOf("--vault", vault)];
  const { name, tokenBytes, stateBytes, shape, blocks } = weigher;
  const prompts = promptsUpTo(weigher.longestTokens).map((tokens) =>
    promptRow(weigher, tokens, links),
  );
  const vaults = bytes.map((size) => ({ bytes: size, tokens: size / tokenBytes }));
  const forecast = await forecastOf(call, weigher, vaults, links);
  const all = forecast?.distinctTokens;
  const sizes = all === undefined ? vaults : [...vaults, { bytes: all * tokenBytes, tokens: all }];
  const isPlanned = nodes !== null && blocks.length > 0;
  const stores = isPlanned ? forecastStores(blocks, sizes, nodes) : null;
  return {
    result: { name, tokenBytes, stateBytes, shape, prompts, vaults, forecast, stores },
    lines: [
      ...describeModel(weigher),
      ...describePrompts(prompts, links),
      ...(forecast === null
        ? describeVaults(vaults)
        : describeForecast(forecast, vaults, links, tokenBytes)),
      ...(stores === null ? [] : describeStores(stores, blocks)),
      ...poolOf(weigher),
    ],
  };
}

/** Lengths of prompts to show: no longer than the engine or the model takes. */
const promptsUpTo = (longest: number): number[] =>
  longest > (PROMPTS.at(-1) ?? 0)
    ? PROMPTS
    : [...PROMPTS.filter((tokens) => tokens < longest), longest];

const NO_ENGINE = "No engine is connected to the sidecar: start one, or name a model with --model.";

function shapeOf({ model = "", kvDtype = "" }: PlanFlags, isInt8: boolean): ModelShape {
  return shapeAt(model, { valueBytes: VALUE_BYTES[kvDtype] ?? null, isInt8 });
}

function ofModel(shape: ModelShape, computeS: Weigher["computeS"], blockTokens: number): Weigher {
  return {
    name: shape.name,
    shape,
    tokenBytes: storedBytesPerToken(shape),
    stateBytes: shape.states?.bytes ?? 0,
    blocks: storedBlocks(shape, blockTokens),
    isMost: false,
    longestTokens: shape.longestTokens ?? Infinity,
    engineBytes: (tokens) => engineBytes(shape, tokens),
    restoredBytes: (tokens) => restoredBytes(shape, tokens),
    computeS,
  };
}

/** Returns nothing before the engine has an arena. */
function ofEngine(engine: EngineStatus, linear: Weigher["computeS"]): Weigher[] {
  const { model, footprint, forecast } = engine;
  if (footprint === null) return [];
  const wire = forecast.map(({ tokens, wireBytes: { kv, ssm } }) => ({ tokens, value: kv + ssm }));
  const computed = forecast.flatMap(({ tokens, computeMs }) =>
    computeMs === null ? [] : [{ tokens, value: computeMs / 1000 }],
  );
  return [
    {
      name: model,
      shape: null,
      tokenBytes: footprint.tokenBytes,
      stateBytes: footprint.stateBytes,
      blocks: blocksOf(engine, footprint.tokenBytes),
      isMost: !footprint.isMeasured,
      longestTokens: forecast.at(-1)?.tokens ?? Infinity,
      engineBytes: () => null,
      restoredBytes: interpolated(wire),
      computeS: linear ?? (computed.length === 0 ? null : interpolated(computed)),
    },
  ];
}

/** Blocks of a running engine, with the sizes of their records as far as they are known. */
function blocksOf({ groups }: EngineStatus, tokenBytes: number): Block[] {
  const kept = groups.filter((group) => group.class === "kv");
  const perToken = kept.reduce((sum, { bytes, tokens }) => sum + bytes / tokens, 0);
  return kept.map(({ bytes, tokens }) => ({ tokens, bytes: (bytes * tokenBytes) / perToken }));
}

function promptRow(weigher: Weigher, tokens: number, links: readonly number[]): PromptRow {
  const wireBytes = weigher.restoredBytes(tokens);
  return {
    tokens,
    engineBytes: weigher.engineBytes(tokens),
    wireBytes,
    seconds: links.map((link) => travelS(wireBytes, link)),
    computeS: weigher.computeS?.(tokens) ?? null,
  };
}

async function forecastOf(
  call: Call<PlanFlags>,
  weigher: Weigher,
  vaults: readonly VaultRow[],
  links: readonly number[],
): Promise<Awaited<ReturnType<typeof forecastTrace>> | null> {
  const { trace, blockTokens, engineCache } = call.options;
  if (trace === undefined) return null;
  const { shape, restoredBytes: wire, computeS } = weigher;
  // A running engine reports stored sizes, but not the bytes of a token in its own cache.
  const perToken = shape === null ? null : weigher.engineBytes(1);
  if (engineCache !== undefined && perToken === null) {
    const reason =
      "--engine-cache: needs --model, which says how many bytes a token takes in the engine";
    throw new TierkvError("USAGE", { reason });
  }
  const own = engineCache === undefined ? 0 : sizeOf("--engine-cache", engineCache);
  return await forecastTrace(
    trace,
    {
      blockTokens: countOf("--block-tokens", blockTokens ?? String(TRACE_BLOCK_TOKENS)),
      sizes: [...vaults.map(({ tokens }) => tokens), Infinity],
      engineTokens: perToken === null ? 0 : own / perToken,
      computeS,
      restoreS: links.map((link) => (tokens: number) => travelS(wire(tokens), link)),
    },
    new Progress(call.io),
  );
}
