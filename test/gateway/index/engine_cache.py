"""Drives vLLM's own Scheduler with mixed requests, and prints what it published and what each request reused.

One JSON line each: `ask` (a request, before it is scheduled), `batch` (events, in bytes), `reused` (its tokens).
Nothing computes: every step ends at once, and every token of an answer is drawn.
"""

from __future__ import annotations

import base64
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, KVEventsConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
VOCAB = 30_000
STEPS_MAX = 100_000
STEP_TOKENS = 512
#: A model of the smallest size: only its lengths matter here.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 64,
    "vocab_size": VOCAB,
    "max_position_embeddings": 8192,
    "dtype": "float32",
}


def whole(block: int = BLOCK) -> FullAttentionSpec:
    """Give a group of full attention."""
    return FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=32, dtype=torch.float32)


def window(tokens: int) -> SlidingWindowSpec:
    """Give a group of windows."""
    heads = {"num_kv_heads": 1, "head_size": 32, "dtype": torch.float32}
    return SlidingWindowSpec(block_size=BLOCK, **heads, sliding_window=tokens)


def state(block: int = BLOCK) -> MambaSpec:
    """Give a group of recurrent states."""
    of = {"shapes": ((1, 32),), "dtypes": (torch.float32,)}
    return MambaSpec(block_size=block, **of, mamba_cache_mode="align")


#: Groups, retention interval, and blocks of the engine's memory.
SHAPES: dict[str, tuple[list[KVCacheSpec], int | None, int]] = {
    "llama": ([whole()], 0, 1200),
    "gemma": ([*[window(128)] * 5, whole()], 0, 4000),
    "gemma-32": ([*[window(128)] * 5, whole()], 32, 6000),
    "windows": ([window(128)], 0, 800),
    "hybrid": ([*[state()] * 3, whole()], 0, 2500),
    "hybrid-64": ([*[state()] * 3, whole()], 64, 3000),
    "hybrid-fine": ([*[state(64)] * 3, whole()], 0, 2500),
}


class Engine:
    def __init__(self, folder: str, shape: str) -> None:
        specs, retention, blocks = SHAPES[shape]
        config = VllmConfig(
            model_config=ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32"),
            cache_config=CacheConfig(
                block_size=BLOCK, enable_prefix_caching=True, mamba_cache_mode="align"
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=8,
                max_num_batched_tokens=STEP_TOKENS,
                max_model_len=8192,
                enable_chunked_prefill=True,
                async_scheduling=False,
                is_encoder_decoder=False,
            ),
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
        )
        config.cache_config.num_gpu_blocks = blocks
        groups = [KVCacheGroupSpec([f"layer.{at}"], spec) for at, spec in enumerate(specs)]
        cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        cache.prefix_cache_retention_interval = retention if len(specs) > 1 else None
        block_size, self.unit = resolve_kv_cache_block_sizes(cache, config)
        hash_fn = get_hash_fn_by_name("sha256")
        init_none_hash(hash_fn)
        self.hasher = get_request_block_hasher(self.unit, hash_fn)
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_size,
            hash_block_size=self.unit,
            log_stats=False,
        )
        self.scheduler.kv_event_publisher = self
        self.encoder = msgspec.msgpack.Encoder()
        self.told: set[str] = set()
        self.made = 0
        self.dice = random.Random(shape)

    def publish(self, batch: Any) -> None:
        data = base64.b64encode(self.encoder.encode(batch)).decode()
        say({"t": "batch", "data": data})

    def shutdown(self) -> None:
        """Belongs to a publisher."""

    def ask(self, tokens: list[int], answers: int, *, salt: str | None, scores: bool) -> str:
        name = str(self.made)
        self.made += 1
        params = SamplingParams(
            temperature=0,
            max_tokens=answers,
            ignore_eos=True,
            prompt_logprobs=1 if scores else None,
        )
        request = Request(name, tokens, params, None, cache_salt=salt, block_hasher=self.hasher)
        say({"t": "ask", "id": name, "tokens": tokens, "salt": salt, "scores": scores})
        self.scheduler.add_request(request)
        return name

    def step(self) -> dict[str, list[int]]:
        """Give the tokens of answers that ended."""
        output = self.scheduler.schedule()
        for new in output.scheduled_new_reqs:
            if new.req_id not in self.told:
                self.told.add(new.req_id)
                say({"t": "reused", "id": new.req_id, "tokens": new.num_computed_tokens})
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = self.scheduler.requests[name]
            is_whole = request.num_computed_tokens >= request.num_tokens
            sampled.append([self.dice.randrange(VOCAB)] if is_whole else [])
        running = {name: self.scheduler.requests[name] for name in names}
        made = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        self.scheduler.update_from_output(output, made)
        return {
            name: list(request.all_token_ids)
            for name, request in running.items()
            if name not in self.scheduler.requests
        }

    def is_reading(self) -> bool:
        """Tell whether a prompt is not computed yet."""
        return any(
            request.num_computed_tokens < request.num_prompt_tokens
            for request in self.scheduler.requests.values()
        )


def say(line: dict[str, Any]) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(line) + "\n")


def drive(engine: Engine, requests: int) -> None:
    """Ask as conversations do: common beginnings, next turns, repeats, pairs at once, salts, scored prompts."""
    dice = engine.dice

    def draw(count: int) -> list[int]:
        return [dice.randrange(VOCAB) for _ in range(count)]

    beginnings = [draw(dice.randrange(40, 700)) for _ in range(12)]
    talks: list[list[int]] = []
    last: list[int] = draw(100)
    steps = 0
    while engine.made < requests or engine.scheduler.requests:
        steps += 1
        assert steps < STEPS_MAX, "the engine hangs"
        if engine.made < requests and not engine.is_reading():
            kind = dice.random()
            if kind < 0.4 and talks:
                tokens = talks[dice.randrange(len(talks))] + draw(dice.randrange(5, 200))
            elif kind < 0.5:
                tokens = list(last)
            else:
                tokens = dice.choice(beginnings) + draw(dice.randrange(5, 400))
            tokens = tokens[:4000]
            salt = "team" if dice.random() < 0.1 else None
            scores = dice.random() < 0.03
            for _ in range(2 if dice.random() < 0.05 else 1):
                engine.ask(tokens, dice.randrange(1, 40), salt=salt, scores=scores)
            last = tokens
        talks.extend(engine.step().values())
        del talks[:-30]


def main() -> None:
    """Take arguments NAME=REQUESTS."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        for argument in sys.argv[1:]:
            name, requests = argument.split("=")
            engine = Engine(folder, name)
            say({"t": "shape", "name": name, "unit": engine.unit})
            drive(engine, int(requests))


if __name__ == "__main__":
    main()
