"""A published KV geometry with thin compute: a prompt of hundreds of megabytes is saved whole on its first visit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.models import LLAMA_8B, Models, prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engines
    from harness.processes import Cluster

#: 4 MiB of KV each, 128 KiB a token.
BLOCK = 32
BLOCKS = 100
TOKENS = BLOCKS * BLOCK + 3


def test_a_prompt_of_real_size_is_saved_on_its_first_visit_and_restored_whole(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster(vault_bytes="1GiB", arena_bytes="768MiB")
    options = {
        "model": models.path(LLAMA_8B),
        "dtype": LLAMA_8B.dtype,
        "block_size": BLOCK,
        "max_model_len": TOKENS + 64,
        "max_num_batched_tokens": 2048,
        "num_gpu_blocks_override": BLOCKS + 20,
        "kv_cache_memory_bytes": 640 << 20,
        "kv_transfer_config": cluster.transfer_config,
    }
    text = prompt(820, TOKENS)
    answers = []
    for _ in range(2):
        with engines.start(vllm=options, processes=True) as engine:
            cluster.wait_restoring()
            (answer,) = engine.call("generate", prompts=[text])
            answers.append(answer)
            cluster.wait_saved(BLOCKS)
    first, again = answers
    assert (first["cached"], again["cached"]) == (0, BLOCKS * BLOCK)
    assert again["tokens"] == first["tokens"]
    counters = cluster.counters()
    lost = {name: count for name, count in counters.items() if "dropped" in name and count}
    assert lost == {}
