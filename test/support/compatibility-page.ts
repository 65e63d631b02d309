// Owns docs/compatibility.md: the test that proves each line on each release, and reasons for the impossible.
import { readFileSync } from "node:fs";
import { gpuTable } from "./gpu-table.ts";
import type { GpuResults } from "./gpu-table.ts";

/** Outcomes by release and test; written by runs of the engine tests with TIERKV_TEST_RECORD set. */
export type Results = Readonly<Record<string, Readonly<Record<string, string>>>>;

export function readResults(): Results {
  const path = new URL("../engine/results.json", import.meta.url);
  return JSON.parse(readFileSync(path, "utf8")) as Results;
}

const RELEASES = ["0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"] as const;
const NEWEST = "0.32.0";
type Release = (typeof RELEASES)[number];
/** The newest release on the model runner that GPUs use. */
const ON_V2 = `${NEWEST} V2`;

interface Line {
  what: string;
  /** Test that proves the line; `*` stands for the release. */
  proof: string;
  /** Longer test for the newest release. */
  newest?: string;
  /** Test for V2, where it runs another one. */
  v2?: string;
  /** Releases on which the line is impossible, with the number of the reason. */
  no?: Partial<Record<Release, number>>;
}

const RESTORES = "test_shapes.py::test_what_one_engine_saved_every_engine_restores";
const FOUND = "test_talk.py::test_nearly_everything_that_could_be_found_is_found";
const RANKS = "test_ranks.py::test_two_ranks_save_and_restore_every_block_together";
const BESIDE = "test_combinations.py::";
const PRESSED = "test_pressure.py::test_under_pressure_every_answer_is_the_one_without_tierkv";
const WITHIN = "test_int8.py::test_";

function everywhere(reason: number): Record<Release, number> {
  return Object.fromEntries(RELEASES.map((release) => [release, reason])) as Record<
    Release,
    number
  >;
}

const LINES: readonly Line[] = [
  {
    what: "full attention (Llama)",
    proof: "test_releases.py::test_another_engine_restores_what_the_first_has_saved[*]",
    v2: "test_restore.py::test_a_prompt_is_restored_up_to_its_last_token[129-4]",
  },
  {
    what: "recurrent states and attention (Qwen3.5)",
    proof: "test_releases.py::test_a_hybrid_model_is_restored_or_refused_by_name[*]",
    newest: `${RESTORES}[hybrid]`,
    no: { "0.28.0": 1 },
  },
  {
    what: "the same, eight layers, one KV head",
    proof: `${RESTORES}[hybrid, one KV head]`,
    no: { "0.28.0": 1 },
  },
  { what: "sliding window and full attention (Gemma 3)", proof: `${RESTORES}[sliding window]` },
  { what: "pages of other kinds, stored byte for byte", proof: `${RESTORES}[opaque pages]` },
  { what: "fp8 cache", proof: `${RESTORES}[fp8 cache]` },
  { what: "latents (MLA)", proof: `${RESTORES}[latent]`, no: everywhere(3) },
  {
    what: "a request is aborted while it loads",
    proof: "test_releases.py::test_a_request_that_is_aborted_while_it_loads_leaves_nothing[*]",
  },
  {
    what: "a request is preempted, and restored again",
    proof: "test_releases.py::test_a_preempted_request_is_restored_again[*]",
    v2: "test_restore.py::test_a_preempted_request_is_restored_again",
  },
  {
    what: "computed by one engine, answered by another (`kv_role`)",
    proof: "test_handoff.py::test_a_consumer_restores_what_a_producer_computed",
  },
  {
    what: "two tensor-parallel ranks",
    proof: `${RANKS}[2]`,
  },
  {
    what: "two ranks with the same KV head, stored once",
    proof: `${RANKS}[1]`,
  },
  {
    what: "speculative decoding by n-grams of the prompt",
    proof: `${BESIDE}test_with_speculative_decoding_only_what_was_accepted_comes_back`,
  },
  {
    what: "MultiConnector",
    proof: `${BESIDE}test_beside_another_connector_ours_restores_and_counts`,
  },
  {
    what: "a tier behind vLLM's own offloading (experimental)",
    proof: `test_tier.py::test_chunks_come_back_after_the_primary_tier_was_reset_and_in_another_engine`,
  },
  { what: "pooling models run untouched", proof: `${BESIDE}test_a_pooling_model_runs_untouched` },
  {
    what: "prompts given as embeddings run untouched",
    proof: `${BESIDE}test_a_prompt_given_as_embeddings_runs_untouched`,
  },
  {
    what: "INT8, full attention: values within the codec's bound",
    proof: `${WITHIN}restored_pages_lie_within_the_codecs_bound[bfloat16]`,
  },
  {
    what: "INT8, sliding window: values within the codec's bound",
    proof: `${WITHIN}windows_and_whole_attention_lie_within_the_codecs_bound`,
  },
  {
    what: "recurrent states in bf16: values within that form's bound",
    proof: `${WITHIN}restored_states_lie_within_the_bound_of_their_form[bf16-float32]`,
    no: { "0.28.0": 1 },
  },
  {
    what: "recurrent states in INT8: values within that form's bound",
    proof: `${WITHIN}restored_states_lie_within_the_bound_of_their_form[int8-float32]`,
    no: { "0.28.0": 1 },
  },
  {
    what: "two stages of a pipeline",
    proof: "test_ranks.py::test_two_stages_of_a_pipeline_save_and_restore_every_block_together",
  },
  {
    what: "asynchronous scheduling",
    proof: "",
    no: everywhere(2),
  },
  {
    what: "LoRA: requests with adapters run untouched beside restored requests",
    proof: `${BESIDE}test_adapters_run_untouched_beside_requests_that_are_restored`,
  },
  {
    what: "pictures: blocks with a picture are found again, and never for another picture",
    proof: `${BESIDE}test_a_picture_is_found_again_and_never_taken_for_another`,
    no: { "0.28.0": 4 },
  },
  {
    what: "200 requests or more at once on a tiny cache, full attention",
    proof: `${PRESSED}[full attention]`,
  },
  { what: "the same with a sliding window", proof: `${PRESSED}[sliding window]` },
  {
    what: "the same with a hybrid model: pages only",
    proof: `${PRESSED}[hybrid]`,
    no: { "0.28.0": 1 },
  },
  {
    what: "conversations, hybrid: at least 0.9 of what an ideal cache would find",
    proof: `${FOUND}[hybrid]`,
    no: { "0.28.0": 1 },
  },
  {
    what: "the same, eight layers, one KV head",
    proof: `${FOUND}[hybrid, one KV head]`,
    no: { "0.28.0": 1 },
  },
  { what: "conversations, sliding window: at least 0.9", proof: `${FOUND}[sliding window]` },
  { what: "conversations, fp8 cache: at least 0.9", proof: `${FOUND}[fp8 cache]` },
  {
    what: "conversations, full attention: at least 0.9",
    proof: `${FOUND}[full attention]`,
  },
  {
    what: "conversations, two tensor-parallel ranks: at least 0.9",
    proof: `${FOUND}[two ranks]`,
  },
];

function cell(line: Line, release: Release, results: Results): string {
  const reason = line.no?.[release];
  if (reason !== undefined) return `no (${reason})`;
  const proof = release === NEWEST ? (line.newest ?? line.proof) : line.proof;
  const runs = proof.includes("*") ? Object.values(results) : [results[release] ?? {}];
  const ended = runs
    .map((run) => run[proof.replace("*", release)])
    .find((end) => end !== undefined);
  if (ended === undefined || ended === "skipped") return "not run";
  return ended === "passed" ? "yes" : ended;
}

const KEPT = "test_mlx.py::test_a_new_process_restores_what_a_killed_one_has_kept";
const STRANGER = "test_mlx.py::test_other_weights_and_other_orders_share_nothing";

function cellOnV2(line: Line, results: Results): string {
  const reason = line.no?.[NEWEST];
  if (reason !== undefined) return `no (${reason})`;
  const ended =
    results[ON_V2]?.[(line.v2 ?? line.newest ?? line.proof).replace("*", NEWEST)] ?? "skipped";
  return ended === "passed" ? "yes" : ended.replace("skipped", "not run");
}

/** Lines without vLLM, each with the test that proves it. */
const MLX_LINES: readonly (readonly [string, string])[] = [
  ["KVCache (Llama)", `${KEPT}[llama]`],
  ["QuantizedKVCache (Llama, 8 bits)", `${KEPT}[quantised]`],
  ["RotatingKVCache (Llama, `max_kv_size`)", `${KEPT}[rotating]`],
  ["RotatingKVCache and KVCache (Gemma 3)", `${KEPT}[window]`],
  ["ArraysCache and KVCache (Qwen3-Next, GDN)", `${KEPT}[hybrid]`],
  ["CacheList of ArraysCache and KVCache (Falcon H1)", `${KEPT}[list]`],
  [
    "KVCache in INT8: a process that holds INT8 never counts as exact",
    "test_mlx.py::test_a_process_that_holds_int8_never_becomes_an_exact_one",
  ],
  ["other weights, and tokens in another order, share nothing", `${STRANGER}[llama]`],
  ["the same with a sliding window", `${STRANGER}[window]`],
  [
    "`python -m tierkv.mlx.server`, killed and started again",
    "test_mlx.py::test_a_server_that_is_started_again_goes_on_where_the_killed_one_was",
  ],
  [
    "EXO's `KVPrefixCache`, from its source at commit b5375f8",
    "test_exo.py::test_exo_restores_what_another_process_of_it_has_kept",
  ],
];

const LAYOUTS = "test_sglang_pools.py::test_pages_of_one_layout_are_read_in_every_other";
const SERVED = "test_sglang_servers.py::test_ranks_and_latent_pages_come_back";
const PUBLISHED = "test_sglang_servers.py::test_published_models_answer_as_from_their_own_cache";

/** Lines of SGLang: its server, and its own pools without an engine. */
const SGLANG_LINES: readonly (readonly [string, string])[] = [
  [
    "server, Llama: restored after `/flush_cache`, ids and logprobs equal",
    "test_sglang.py::test_pages_come_back_from_the_vault_bit_for_bit",
  ],
  [
    "server: `cache_salt` and `extra_key` share nothing",
    "test_sglang.py::test_salts_and_extra_keys_share_nothing",
  ],
  [
    "server: weights updated with and without a flush",
    "test_sglang.py::test_changed_weights_begin_another_generation",
  ],
  [
    "server: vault's connection cut; sidecar hung, killed, started again",
    "test_sglang.py::test_faults_cost_restores_but_no_request",
  ],
  [
    "server: vault killed in the middle of a restore",
    "test_sglang.py::test_a_vault_killed_in_the_middle_of_a_restore",
  ],
  [
    "server started again, each layout and I/O back-end, `timeout` and `best_effort`",
    "test_sglang_servers.py::test_a_server_started_again_restores_in_another_layout",
  ],
  [
    "server with two tensor-parallel ranks: restored, cut, sidecar killed, started again",
    `${SERVED}[mha-2]`,
  ],
  ["the same with MLA (MiniCPM3) and one rank", `${SERVED}[mla-1]`],
  ["the same with MLA and two ranks", `${SERVED}[mla-2]`],
  [
    "server with LoRA adapters of `--lora-paths` and of `/load_lora_adapter`",
    "test_sglang_servers.py::test_adapters_have_pages_of_their_own",
  ],
  ["server, published weights: Gemma 3 270M", `${PUBLISHED}[gemma3-270m]`],
  ["the same: Qwen2.5-Coder 0.5B", `${PUBLISHED}[qwen25-0.5b]`],
  [
    "server started without a sidecar, which comes later",
    "test_sglang_servers.py::test_a_sidecar_that_is_absent_at_the_start_is_found_later",
  ],
  [
    "server without the plug-in: does not start",
    "test_sglang_servers.py::test_without_the_plug_in_the_server_does_not_start",
  ],
  ["pools, bf16: each layout and I/O back-end reads every other", `${LAYOUTS}[mha]`],
  ["the same, float32", `${LAYOUTS}[float32]`],
  ["the same, fp8", `${LAYOUTS}[fp8]`],
  ["the same, MLA", `${LAYOUTS}[mla]`],
  [
    "pools of two tensor-parallel ranks",
    "test_sglang_pools.py::test_ranks_of_heads_keep_their_own_pages",
  ],
  [
    "the same, MLA: pages of the first rank",
    "test_sglang_pools.py::test_ranks_of_mla_share_the_first_ones_pages",
  ],
  [
    "other weights, adapters, arguments, shapes, types or ranks give another namespace",
    "test_sglang_pools.py::test_everything_that_could_change_a_value_is_in_the_name",
  ],
  [
    "windows, states and linkers are refused by name",
    "test_sglang_pools.py::test_what_is_not_carried_is_refused_by_name",
  ],
];

/** Returns a table of one engine that is not vLLM. */
function alone(
  title: string,
  lines: readonly (readonly [string, string])[],
  ends: Readonly<Record<string, string>>,
): string {
  const rows = lines.map(([what, proof]) => {
    const ended = ends[proof];
    if (ended === undefined || ended === "skipped") return `| ${what} | not run |`;
    return `| ${what} | ${ended === "passed" ? "yes" : ended} |`;
  });
  return [`| ${title} | |`, "| --- | --- |", ...rows].join("\n");
}

export function renderCompatibilityPage(results: Results, gpu: GpuResults): string {
  const head = ["", ...RELEASES, ON_V2];
  const rows = LINES.map((line) => [
    line.what,
    ...RELEASES.map((release) => cell(line, release, results)),
    cellOnV2(line, results),
  ]);
  const table = [head, head.map(() => "---"), ...rows];
  return `${INTRODUCTION}
${table.map((row) => `| ${row.join(" | ")} |`).join("\n")}

${REASONS}
## On a GPU

${gpuTable(gpu)}

## SGLang

${alone("SGLang 0.5.23, Linux on a CPU", SGLANG_LINES, results["sglang"] ?? {})}

SGLang's own server, scheduler, HiCache and pools ran, with torch's attention. Stand-ins replace its compiled kernels and the page copies of GPUs (test/engine/harness/sglang_cpu). How to use it: [SGLang](how-to/sglang.md).

Not run:

- any GPU, pipeline and context parallelism, data-parallel attention, speculative decoding, \`--hicache-host-memory-mode buffer_only\`, and storage attached to a running server;
- DeepSeek's MLA in the server: SGLang computes a prompt's first part with kernels of a GPU or of Intel's AMX (MiniCPM3's MLA is computed by torch);
- LMCache beside ours: for SGLang it is no storage of HiCache, but a cache in its place that copies from a GPU's memory.

## mlx-lm and EXO

${alone("mlx 0.32.4, mlx-lm 0.32.2, Linux on a CPU", MLX_LINES, results["mlx-lm"] ?? {})}

"yes" means: a process stored the caches and was killed; the next process restored at least 0.9 of the prompt, with the logits that its own prompt cache gives, bit for bit (except INT8). How to use it: [mlx-lm and EXO](how-to/mlx.md).

Not run:

- any Apple GPU, MLX on CUDA, and macOS (tests take Linux's own calls away from tierKV instead);
- models split over machines, of which nothing is stored;
- EXO as a whole. Its Rust part and its fork of mlx-lm cannot be installed here, so its real class ran with PyPI's mlx-lm, in an environment of Python 3.13.
`;
}

const INTRODUCTION = `# Models and releases

This page says what the tests have run. test/engine/compatibility.test.ts generates it from their outcomes (test/engine/results.json).

| word | meaning |
| --- | --- |
| yes | One engine saved the blocks and another restored them. The tokens are those of the engine's own prefix hit, and the pages have the bytes that were computed |
| no (N) | It cannot be run; note N below the table says why |
| not run | Nothing forbids it, and no run is on record |

These runs were on a CPU; [another table](#on-a-gpu) has the runs on a GPU. The first columns are releases of vLLM with model runner V1. The last column is model runner V2, which vLLM uses on GPUs.
Here its Triton kernels ran in Triton's own interpreter ([decision 0102](decisions/0102-how-faults-are-made.md)), a hundred times slower, so only some lines were run.
`;

const REASONS = `1. tierKV refuses it at start, by name. 0.28 hands over recurrent states only at places within a block (\`partial_tail_offloads\`); states at whole boundaries came with 0.29
   (vLLM #51358).
2. vLLM turns asynchronous scheduling off on a CPU (vLLM #31525, vllm/platforms/cpu.py). It ran once on a GPU ([bench/gpu](../bench/gpu/README.md)). Blocks are named by the step that computes
   them and held until they are copied, whenever the next step is scheduled.
3. Only on CPUs with AMX, and from 0.29 on, vLLM continues from cached latents (vLLM #52616). Elsewhere it turns prefix caching off for MLA (vLLM #49453,
   vllm/platforms/cpu.py), so there is nothing to restore. The test runs where the CPU has AMX; other tests check the description of the pages.
4. The LLaVA of 0.28.0 does not start, even without a connector: it imports \`PixtralRotaryEmbedding\`, which the transformers of its lock (python-shim/releases/0.28.0.txt) no longer has.

## What is stored, refused or left alone

- **Stored:** every kind of KV-cache page. K and V vectors are stored in one canonical order. All other pages (8-bit and packed caches, latents, recurrent states, kinds that the connector
  does not know) are stored byte for byte, in a namespace that names their class and parameters. Of an unknown kind, vLLM itself says which blocks it needs.
- **Refused at start** on every release: context parallelism; \`--mamba-cache-mode\` other than \`align\`; and states of a whole sequence that are not vLLM's
  MambaSpec, because vLLM does not hand them over. A release older than 0.28 is refused, too.
- **Run untouched**, without saves or restores: models with cross-attention, with layers that see later tokens, or with groups in host memory; pooling models; requests with LoRA
  adapters; prompts given as embeddings. In other models, tierKV leaves encoders alone, and groups that vLLM keeps out of prefix caching.
- **A newer release** than the newest here starts with a warning that names the methods it lacks or adds.
- With the package installed, \`"kv_connector": "TierKVConnector"\` is enough, because the connector registers itself (\`vllm.general_plugins\`).

## Models

- **Families, tried without weights:** small models of vLLM's own classes for DeepSeek-V3 and V4, Kimi-K2, Kimi-K3, GLM-5, Gemma 3 and 4, Qwen3.5, Llama 4 and gpt-oss were built. Every
  layer's page came back byte for byte, also those of compressors and indexers, and so did the pages that each attention backend asks for (0.32.0; no kernel of these models ran).
- **fp8 caches:** vLLM has them on CPUs only with AVX-512 or AMX (vLLM #39445, \`_get_attn_isa\` of vllm/v1/attention/backends/cpu_attn.py). The run on record was on a CPU with AVX-512.
- **Hybrid models:** a block is large (hundreds to thousands of tokens), and vLLM keeps states at few places, so a prompt that is not longer than one block
  can never be restored. \`shim_prompts_below_block\` counts such prompts, and the engine's log says so once.
- **Pictures:** the name of a block that shows a picture contains vLLM's hash of the picture's content. The test has the same text around three pictures.

## Engines and ranks

- **Block sizes:** engines with different block sizes share nothing, except a hand-off to an engine with shorter blocks ([0060](decisions/0060-claims-that-vaults-confirm.md)). Other hand-offs are computed
  (\`shim_handoffs_foreign\`): vLLM's hashes are chains over blocks of its own size, a record holds one block, and a slot takes one record.
- **Ranks with the same pages** (latents, repeated KV heads) store them once. Not run on CUDA.
- **Ranks on several hosts** (tensor or pipeline parallel): a sidecar sees only the ranks of its own host, so nothing is saved or restored, and the engine computes.
  \`tierkv status\` says how many ranks are connected. Engines that each run on one host can share vaults.
- **\`--distributed-executor-backend external_launcher\`** with several ranks runs untouched, because every rank plans alone.
- **A pipeline on a CPU:** an eager engine ends at its first request, even without a connector, unless it has computed an empty batch (\`execute_dummy_batch\`) before, as the test does. vLLM's worker makes
  the tensors that a later stage receives only where it warms up a compiled model (vllm/v1/worker/cpu_model_runner.py; we know of no vLLM issue about it).
- **CPUs with AMX:** a fresh engine of 0.32.0 whose first step computes few tokens dies by SIGILL, even without a connector: \`tilezero\` in \`cpu_attn_amx.hpp\` uses tiles before anybody has
  asked Linux for them (arch_prctl, ARCH_REQ_XCOMP_PERM; oneDNN asks before a larger step). To see it without tierKV, generate from a prompt of 4 tokens in a new eager engine (Qwen3, bf16, head dim 96,
  6 heads, 3 KV heads, 5 layers, \`--block-size 32\`). On such CPUs the connector asks Linux in each worker, and leaves 64 tokens to compute until a step of 64 has run. Not run: no machine of ours has AMX.

## Options and states of an engine

- **A load that fails** is computed again. The connector reports it to vLLM by request from 0.30 on, and by block on 0.28 and 0.29. These two releases accept failed blocks of one KV-cache group only
  (vLLM #45474), so there an engine with several groups ends rather than use pages that nobody filled.
- **\`--prefix-match-unit\` below the page:** restores are whole pages, so a restore may bring up to a page less than a hit in the engine's own cache ([0148](decisions/0148-engines-of-other-kinds.md)).
- **Sleep mode:** while an engine of 0.33 or newer sleeps, the connector touches none of its pages. It drops saves (\`dropped_save_asleep\`), and the engine computes what it would have loaded. The test takes
  memory away behind its addresses, because that release has no CPU build.
- **\`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\`:** vLLM refuses it beside any connector, unless vLLM's own allocator is on. Where memory fragments without it, as on GB10 machines, use
  \`--enable-sleep-mode\`. \`tierkv doctor\` names both. Not run: no machine of ours is a GB10.
- **vLLM's own metrics:** \`vllm:tierkv_restore_seconds\` is the time that requests waited for restored blocks, by \`tier\` (\`host\`: the sidecar's memory; \`vault\`).
  There are also \`vllm:tierkv_restored_tokens_total\`, \`vllm:tierkv_loaded_bytes_total\`, \`vllm:tierkv_offered_bytes_total\`, \`vllm:tierkv_restore_wait_seconds_total\`,
  \`vllm:tierkv_misses_total\` and \`vllm:tierkv_dropped_blocks_total\` by \`reason\`, and \`vllm:tierkv_events_total\` with the connector's other counts by \`event\`.

\`npm run test:nightly\` runs each release, the whole suite on the oldest release, and 300 requests for each shape that this machine can run.
`;
