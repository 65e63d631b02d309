// Owns the proof that config.json is reckoned as the models' own figures say, and that what is not understood is refused by its key.
import { expect, test } from "vitest";
import { readModel } from "../../../src/extras/plan/model.ts";
import type { ModelShape, Reading } from "../../../src/extras/plan/model.ts";
import {
  engineBytes,
  restoredBytes,
  storedBytesPerToken,
} from "../../../src/extras/plan/weight.ts";

const KIB = 1024;
const EXACT: Reading = { valueBytes: null, isInt8: false };

const read = (config: object, reading = EXACT): ModelShape =>
  readModel(JSON.stringify(config), "config.json", reading);

/** What the published config.json of each says of its cache. */
const LLAMA_8B = {
  model_type: "llama",
  num_hidden_layers: 32,
  hidden_size: 4096,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  torch_dtype: "bfloat16",
};
const LLAMA_70B = {
  ...LLAMA_8B,
  num_hidden_layers: 80,
  hidden_size: 8192,
  num_attention_heads: 64,
};
const QWEN3_30B = {
  model_type: "qwen3_moe",
  num_hidden_layers: 48,
  hidden_size: 2048,
  num_attention_heads: 32,
  num_key_value_heads: 4,
  head_dim: 128,
  sliding_window: null,
  use_sliding_window: false,
  max_window_layers: 48,
};
const DEEPSEEK_V3 = {
  model_type: "deepseek_v3",
  num_hidden_layers: 61,
  hidden_size: 7168,
  num_attention_heads: 128,
  num_key_value_heads: 128,
  kv_lora_rank: 512,
  qk_rope_head_dim: 64,
  v_head_dim: 128,
  // Of the weights; the cache keeps bfloat16.
  quantization_config: { quant_method: "fp8" },
};
const ALTERNATING = Array.from({ length: 36 }, (_, at) =>
  at % 2 === 0 ? "sliding_attention" : "full_attention",
);
const GPT_OSS_120B = {
  model_type: "gpt_oss",
  num_hidden_layers: 36,
  hidden_size: 2880,
  num_attention_heads: 64,
  num_key_value_heads: 8,
  head_dim: 64,
  sliding_window: 128,
  layer_types: ALTERNATING,
};
const GEMMA3_27B = {
  model_type: "gemma3",
  text_config: {
    model_type: "gemma3_text",
    num_hidden_layers: 62,
    hidden_size: 5376,
    num_attention_heads: 32,
    num_key_value_heads: 16,
    head_dim: 128,
    sliding_window: 1024,
    sliding_window_pattern: 6,
  },
};
const QWEN3_NEXT = {
  model_type: "qwen3_next",
  num_hidden_layers: 48,
  hidden_size: 2048,
  num_attention_heads: 16,
  num_key_value_heads: 2,
  head_dim: 256,
  full_attention_interval: 4,
  linear_num_key_heads: 16,
  linear_num_value_heads: 32,
  linear_key_head_dim: 128,
  linear_value_head_dim: 128,
  linear_conv_kernel_dim: 4,
};
const NEMOTRON_H = {
  model_type: "nemotron_h",
  num_hidden_layers: 6,
  hidden_size: 4096,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  head_dim: 128,
  hybrid_override_pattern: "M-M*-M",
  mamba_num_heads: 128,
  mamba_head_dim: 64,
  ssm_state_size: 128,
  n_groups: 8,
  conv_kernel: 4,
};

test.each([
  ["Llama 3.1 8B", LLAMA_8B, 128],
  ["Llama 3.1 70B", LLAMA_70B, 320],
  ["Qwen3 30B A3B", QWEN3_30B, 96],
  ["DeepSeek V3", DEEPSEEK_V3, 68.625],
])("%s: its own figure, in full layers alone", (_name, config, kib) => {
  const shape = read(config);
  expect(shape.full.engineBytes).toBe(kib * KIB);
  expect([shape.windows, shape.states]).toEqual([null, null]);
  expect(engineBytes(shape, 32_768)).toBe(kib * KIB * 32_768);
  expect(storedBytesPerToken(shape)).toBe(kib * KIB);
});

test("what attention needs is named where it lacks, and a model without attention needs none of it", () => {
  const { num_attention_heads: _heads, num_key_value_heads: _pairs, ...rest } = LLAMA_8B;
  expect(() => read(rest)).toThrow(/num_attention_heads is no number above 0/);
  const states = { ...NEMOTRON_H, num_hidden_layers: 2, hybrid_override_pattern: "M-" };
  const { num_attention_heads: _h, num_key_value_heads: _p, head_dim: _d, ...bare } = states;
  expect(read(bare).full.engineBytes).toBe(0);
});

test("gpt-oss-120b: 72 KiB a token, half of it only as far as the window", () => {
  const shape = read(GPT_OSS_120B);
  expect(shape.full).toMatchObject({ layers: 18, engineBytes: 36 * KIB });
  expect(shape.windows).toMatchObject({ layers: 18, tokens: 128, engineBytes: 36 * KIB });
  expect(engineBytes(shape, 100)).toBe(72 * KIB * 100);
  expect(engineBytes(shape, 10_000)).toBe(36 * KIB * (10_000 + 128));
  // A vault keeps every block, because any of them may end a prompt.
  expect(storedBytesPerToken(shape)).toBe(72 * KIB);
});

test("a picture model's text part is read; every sixth layer of Gemma 3 sees everything", () => {
  const shape = read(GEMMA3_27B);
  expect([shape.full.layers, shape.windows?.layers, shape.windows?.tokens]).toEqual([10, 52, 1024]);
});

test("Qwen3-Next: a quarter attends, the others have a state", () => {
  const shape = read(QWEN3_NEXT);
  expect(shape.full).toMatchObject({ layers: 12, engineBytes: 12 * 2 * 2 * 256 * 2 });
  const layer = 3 * (2 * 16 * 128 + 32 * 128) * 2 + 32 * 128 * 128 * 2;
  expect(shape.states).toEqual({ layers: 36, bytes: 36 * layer });
  expect(restoredBytes(shape, 1000)).toBe(1000 * 24_576 + 36 * layer);
});

test("Mamba 2 layers by their pattern; states are float32 where nothing else is said", () => {
  const layer = 3 * (128 * 64 + 2 * 8 * 128) * 2;
  const state = 128 * 64 * 128;
  expect(read(NEMOTRON_H).states).toEqual({ layers: 3, bytes: 3 * (layer + state * 4) });
  const narrow = read({ ...NEMOTRON_H, mamba_ssm_cache_dtype: "bfloat16" });
  expect(narrow.states?.bytes).toBe(3 * (layer + state * 2));
  expect(read(NEMOTRON_H).full.layers).toBe(1);
});

test("the longest prompt is that of config.json, unless positions are scaled", () => {
  const longest = (more: object): number | null =>
    read({ ...LLAMA_8B, max_position_embeddings: 32_768, ...more }).longestTokens;
  expect(longest({})).toBe(32_768);
  expect(longest({ max_position_embeddings: undefined })).toBeNull();
  expect(longest({ rope_scaling: { rope_type: "yarn", factor: 4 } })).toBeNull();
  expect(longest({ rope_parameters: { rope_theta: 1e6, rope_type: "default" } })).toBe(32_768);
});

test("INT8 stores one byte a value, two for a vector's scale and a mean of K in 16 tokens; other layouts go as they are", () => {
  const int8: Reading = { valueBytes: null, isInt8: true };
  const token = 32 * 8 * (2 * 130 + 130 / 16);
  expect(storedBytesPerToken(read(LLAMA_8B, int8))).toBe(token);
  expect(storedBytesPerToken(read(DEEPSEEK_V3, int8))).toBe(61 * 576 * 2);
  expect(storedBytesPerToken(read(LLAMA_8B, { ...int8, valueBytes: 4 }))).toBe(token);
  expect(storedBytesPerToken(read(LLAMA_8B, { ...int8, valueBytes: 1 }))).toBe(64 * KIB);
});

test("fp8 halves what the engine keeps: asked for, or by a checkpoint that says so", () => {
  expect(read(LLAMA_8B, { ...EXACT, valueBytes: 1 }).full.engineBytes).toBe(64 * KIB);
  const scheme = { kv_cache_scheme: { num_bits: 8, type: "float" } };
  expect(read({ ...LLAMA_8B, quantization_config: scheme }).valueBytes).toBe(1);
  const named = { kv_cache_quant_algo: "FP8" };
  expect(read({ ...LLAMA_8B, quantization_config: named }).valueBytes).toBe(1);
});

test.each([
  ["no JSON", "{", "it is no JSON object"],
  ["a list", "[]", "it is no JSON object"],
  ["no layers", "{}", "num_hidden_layers is no number above 0"],
  [
    "an unknown kind of layer",
    JSON.stringify({ ...LLAMA_8B, layer_types: ["wavelet_attention"] }),
    'layer_types has "wavelet_attention"',
  ],
  [
    "shared layers",
    JSON.stringify({ ...LLAMA_8B, num_kv_shared_layers: 10 }),
    "num_kv_shared_layers is not understood here",
  ],
])("%s is refused by name", (_what, text, reason) => {
  expect(() => readModel(text, "config.json", EXACT)).toThrow(reason);
});
