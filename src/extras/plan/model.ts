// Owns reading a model's config.json for its KV cache: bytes per token of full layers and windows, and of states.
import { TierkvError } from "../../base/errors.ts";
import { parseObject } from "../../base/json.ts";

/** Bytes of a KV-cache value in the engine; 1 is vLLM's fp8. */
export type ValueBytes = 1 | 2 | 4;

/** Layers of one kind. Bytes of one token over all of them. */
export interface Layers {
  layers: number;
  engineBytes: number;
  /** Bytes in a vault: INT8 where tierKV supports the layer and value, else as in the engine. */
  storedBytes: number;
}

export interface Windows extends Layers {
  /** Tokens of the window. */
  tokens: number;
}

/** States of one boundary, over all layers. */
export interface States {
  layers: number;
  bytes: number;
}

export interface ModelShape {
  name: string;
  /** Form of the tokens in attention layers. */
  attention: "heads" | "latent" | "none";
  valueBytes: ValueBytes;
  full: Layers;
  windows: Windows | null;
  states: States | null;
  /** Longest prompt; null: config.json names none, or scales positions. */
  longestTokens: number | null;
}

export interface Reading {
  /** null: from the model's config.json, else 16 bits. */
  valueBytes: ValueBytes | null;
  /** [turbo_quant] enabled. */
  isInt8: boolean;
  /** Name of a model whose config.json has none; left out: its type. */
  name?: string;
}

type Json = Readonly<Record<string, unknown>>;

/** One scale per head vector (bf16), and a mean of K, coded like a vector, per head and this number of tokens. */
const SCALE_BYTES = 2;
const MEAN_TOKENS = 16;
/** The index of DeepSeek's sparse attention: one byte a value, a scale of 4 bytes per 128. */
const INDEX_BLOCK = 128;
const INDEX_SCALE_BYTES = 4;

/** Kinds by the names in `layer_types`. */
const KINDS: Readonly<Record<string, Kind>> = {
  full_attention: "full",
  attention: "full",
  sliding_attention: "window",
  chunked_attention: "window",
  linear_attention: "state",
  mamba: "state",
};

/** Keys of models whose layers differ in unsupported ways. */
const STRANGE = [
  "attn_layer_indices",
  "compress_ratios",
  "global_head_dim",
  "hybrid_layer_pattern",
  "layers_block_type",
  "linear_attn_config",
  "num_kv_shared_layers",
  "swa_num_key_value_heads",
];

/** Model types whose recurrent states vLLM keeps as float32 unless config.json has a type. */
const WIDE_STATES = /^nemotron_h/;

type Kind = "full" | "window" | "state" | "nothing";

/** Reads a model's shape; throws naming a key that is not understood. `path` is for messages. */
export function readModel(text: string, path: string, reading: Reading): ModelShape {
  const outer = new Fields(parse(text, path), path);
  const inner = outer.part("text_config") ?? outer.part("llm_config") ?? outer;
  inner.refuse(...STRANGE);
  const kinds = layerKinds(inner);
  const count = (kind: Kind): number => kinds.filter((one) => one === kind).length;
  const valueBytes = reading.valueBytes ?? cacheBytes(outer);
  const isInt8 = reading.isInt8 && valueBytes !== 1;
  const windows = count("window");
  const attending = count("full") + windows;
  const perLayer = layerBytes(inner, attending, valueBytes, isInt8);
  const layersOf = (layers: number): Layers => ({
    layers,
    engineBytes: layers * perLayer.engine,
    storedBytes: layers * perLayer.stored,
  });
  const states = count("state");
  return {
    name: outer.text("_name_or_path") ?? reading.name ?? outer.text("model_type") ?? path,
    attention: attending === 0 ? "none" : perLayer.isLatent ? "latent" : "heads",
    valueBytes,
    full: layersOf(count("full")),
    windows: windows === 0 ? null : { tokens: windowTokens(inner), ...layersOf(windows) },
    states: states === 0 ? null : { layers: states, bytes: states * stateBytes(inner) },
    longestTokens: longestOf(inner),
  };
}

/** Scaled positions reach further than `max_position_embeddings`, or not, by the kind of scaling. */
function longestOf(fields: Fields): number | null {
  const rope = fields.part("rope_scaling") ?? fields.part("rope_parameters");
  const factor = rope?.number("factor") ?? null;
  return factor === null ? fields.number("max_position_embeddings") : null;
}

function parse(text: string, path: string): Json {
  const value = parseObject(text);
  if (value !== null) return value;
  throw notUnderstood(path, "it is no JSON object", "name the config.json of a Hugging Face model");
}

const notUnderstood = (path: string, reason: string, fix: string): TierkvError =>
  new TierkvError("CONFIG_UNREADABLE", { path, reason, fix });

/** An fp8 checkpoint's cache type, else vLLM's default: the type of the weights' arithmetic. */
function cacheBytes(outer: Fields): ValueBytes {
  const quantized = outer.part("quantization_config");
  const scheme = quantized?.part("kv_cache_scheme")?.number("num_bits");
  if (scheme === 8 || /fp8/i.test(quantized?.text("kv_cache_quant_algo") ?? "")) return 1;
  const inner = outer.part("text_config") ?? outer;
  const type = ["dtype", "torch_dtype"].map((key) => inner.text(key) ?? outer.text(key));
  return type.find((name) => name !== null) === "float32" ? 4 : 2;
}

/** The kind of each layer, first to last. */
function layerKinds(model: Fields): Kind[] {
  const layers = model.need("num_hidden_layers");
  const named = model.texts("layer_types");
  if (named !== null) {
    return named.map((name) => KINDS[name] ?? model.strange("layer_types", name));
  }
  model.refuse("attention_chunk_size");
  const pattern = model.text("hybrid_override_pattern");
  if (pattern !== null) {
    const kind = (letter: string): Kind =>
      letter === "M" ? "state" : letter === "*" ? "full" : "nothing";
    return pattern.split("").map(kind);
  }
  const numbers = Array.from({ length: layers }, (_, at) => at);
  const every = model.number("full_attention_interval");
  if (every !== null) {
    return numbers.map((at) => ((at + 1) % every === 0 ? "full" : "state"));
  }
  const period = model.number("attn_layer_period");
  if (period !== null) {
    const offset = model.number("attn_layer_offset") ?? 0;
    return numbers.map((at) => (at % period === offset ? "full" : "state"));
  }
  if (model.text("model_type") === "falcon_h1") {
    throw notUnderstood(model.path, "its layers have attention and a state each", RUNNING);
  }
  return numbers.map(windowPattern(model));
}

const RUNNING = "start the engine and run `tierkv plan` without --model";

/** The pattern of models older than `layer_types`. */
function windowPattern(model: Fields): (at: number) => Kind {
  const window = model.number("sliding_window");
  if (window === null || model.value("use_sliding_window") === false) return () => "full";
  const every = model.number("sliding_window_pattern");
  if (every !== null) return (at) => ((at + 1) % every === 0 ? "full" : "window");
  if (model.text("model_type") === "gemma2") return (at) => (at % 2 === 0 ? "window" : "full");
  if (model.text("model_type") === "gemma3_text") {
    return (at) => ((at + 1) % 6 === 0 ? "full" : "window");
  }
  const first = model.value("use_sliding_window") === true ? model.number("max_window_layers") : 0;
  return (at) => (at >= (first ?? 0) ? "window" : "full");
}

const windowTokens = (model: Fields): number =>
  model.number("sliding_window") ?? model.need("attention_chunk_size");

/** Bytes of a token in one layer of attention. */
interface LayerBytes {
  isLatent: boolean;
  engine: number;
  stored: number;
}

/** `attending`: layers that attend; none needs none of the model's keys. */
function layerBytes(
  model: Fields,
  attending: number,
  valueBytes: ValueBytes,
  isInt8: boolean,
): LayerBytes {
  if (attending === 0) return { isLatent: false, engine: 0, stored: 0 };
  const rank = model.number("kv_lora_rank");
  if (rank !== null) {
    const latent = (rank + model.need("qk_rope_head_dim")) * valueBytes;
    const index = model.number("index_head_dim") ?? 0;
    const engine = latent + index + Math.ceil(index / INDEX_BLOCK) * INDEX_SCALE_BYTES;
    return { isLatent: true, engine, stored: engine };
  }
  const pairs = model.number("num_key_value_heads") ?? model.need("num_attention_heads");
  const dim =
    model.number("head_dim") ?? model.need("hidden_size") / model.need("num_attention_heads");
  const engine = 2 * pairs * dim * valueBytes;
  const int8 = (2 + 1 / MEAN_TOKENS) * pairs * (dim + SCALE_BYTES);
  return { isLatent: false, engine, stored: isInt8 ? int8 : engine };
}

/** One layer's convolution and recurrent state: gated delta rule, Mamba 2 or Mamba 1. */
function stateBytes(model: Fields): number {
  const convolution = 2;
  const types = ["mamba_ssm_dtype", "mamba_ssm_cache_dtype"].map((key) => model.text(key));
  const said = types.find((type) => type !== null);
  const isWide = WIDE_STATES.test(model.text("model_type") ?? "");
  const recurrent = (said ?? (isWide ? "float32" : "")) === "float32" ? 4 : 2;
  const values = model.number("linear_num_value_heads");
  if (values !== null) {
    const keyDim = model.need("linear_key_head_dim");
    const valueDim = model.need("linear_value_head_dim");
    const width = 2 * model.need("linear_num_key_heads") * keyDim + values * valueDim;
    const kept = (model.need("linear_conv_kernel_dim") - 1) * width;
    return kept * convolution + values * keyDim * valueDim * recurrent;
  }
  const size = model.number("ssm_state_size") ?? model.need("mamba_d_state");
  const kernel = model.number("conv_kernel") ?? model.need("mamba_d_conv");
  const heads = model.number("mamba_num_heads") ?? model.number("mamba_n_heads");
  if (heads === null) {
    const inner = model.need("mamba_expand") * model.need("hidden_size");
    return inner * ((kernel - 1) * convolution + size * recurrent);
  }
  const dim = model.number("mamba_head_dim") ?? model.need("mamba_d_head");
  const groups = model.number("n_groups") ?? model.need("mamba_n_groups");
  const width = heads * dim + 2 * groups * size;
  return (kernel - 1) * width * convolution + heads * dim * size * recurrent;
}

/** A part of config.json; values of another type count as absent. */
class Fields {
  readonly path: string;
  readonly #json: Json;

  constructor(json: Json, path: string) {
    this.#json = json;
    this.path = path;
  }

  value(key: string): unknown {
    return Object.hasOwn(this.#json, key) ? this.#json[key] : undefined;
  }

  part(key: string): Fields | null {
    const value = this.value(key);
    const isPart = typeof value === "object" && value !== null && !Array.isArray(value);
    return isPart ? new Fields(value as Json, this.path) : null;
  }

  text(key: string): string | null {
    const value = this.value(key);
    return typeof value === "string" && value !== "" ? value : null;
  }

  texts(key: string): string[] | null {
    const value = this.value(key);
    if (!Array.isArray(value)) return null;
    return value.map((item) => String(item));
  }

  number(key: string): number | null {
    const value = this.value(key);
    return typeof value === "number" && value > 0 && Number.isFinite(value) ? value : null;
  }

  need(key: string): number {
    const value = this.number(key);
    if (value !== null) return value;
    throw notUnderstood(this.path, `${key} is no number above 0`, RUNNING);
  }

  refuse(...keys: string[]): void {
    const isSet = (value: unknown): boolean => value !== undefined && value !== null && value !== 0;
    const found = keys.find((key) => isSet(this.value(key)));
    if (found === undefined) return;
    throw notUnderstood(this.path, `${found} is not understood here`, RUNNING);
  }

  strange(key: string, value: string): never {
    throw notUnderstood(this.path, `${key} has "${value}", which is not understood here`, RUNNING);
  }
}
