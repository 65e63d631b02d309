"""Stand-ins for what vLLM hands the shim: configuration, KV-cache specs, block pool, requests, step outputs."""

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tierkv.connectors.vllm.api.metadata import StepReceipts
from tierkv.connectors.vllm.api.resolved import Resolved
from tierkv.connectors.vllm.connector import TierKVConnector
from tierkv.connectors.vllm.pages.specs import Group

BLOCK_TOKENS = 4


def connector_of(half: Any) -> TierKVConnector:
    """The class that vLLM loads, around a half that a test has made."""
    connector = object.__new__(TierKVConnector)
    connector._connector_metadata = None
    connector.half = connector.scheduler_side = connector.worker_side = half
    return connector


def make_group(
    *,
    layers: int = 2,
    tokens: int = BLOCK_TOKENS,
    heads: int = 2,
    dims: tuple[int, int] = (3, 3),
    dtype: torch.dtype = torch.float32,
    index: int = 0,
    tail: int = 0,
) -> Group:
    """A small group; its layers are named `layer.0`, `layer.1`, ..."""
    names = tuple(f"layer.{number}" for number in range(layers))
    return Group(index, names, tokens, heads, dims[0], dims[1], dtype, tail=tail)


def make_state(*, index: int = 1, tokens: int = BLOCK_TOKENS, page_bytes: int = 24) -> Group:
    """A recurrent state of one layer, `state.<index>`."""
    return Group(
        index,
        (f"state.{index}",),
        tokens,
        record_class="ssm",
        tail=1,
        page_bytes=(page_bytes,),
        page_format="state",
    )


class FullAttentionSpec:
    """Has the name and the fields of vLLM's class."""

    def __init__(self, **changes: Any) -> None:
        self.block_size = BLOCK_TOKENS
        self.num_kv_heads = self.num_heads = 2
        self.head_size = self.head_size_v = 3
        self.dtype = torch.float32
        self.tokens_per_state = 1
        self.sliding_window = self.attention_chunk_size = self.state_content_bytes = None
        self.kv_quant_mode = 0
        self.__dict__.update(changes)

    @property
    def real_page_size_bytes(self) -> int:
        vectors = self.num_heads * self.block_size
        return int(vectors * (self.head_size + self.head_size_v) * self.dtype.itemsize)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__dict__})"


class SlidingWindowSpec(FullAttentionSpec):
    """Has the name of vLLM's class."""


class MLAAttentionSpec(FullAttentionSpec):
    """Has the name of vLLM's class."""


class MambaSpec:
    """Has the name and the fields of vLLM's class."""

    def __init__(self, **changes: Any) -> None:
        self.block_size = BLOCK_TOKENS
        self.mamba_cache_mode = "align"
        self.real_page_size_bytes = 24
        self.__dict__.update(changes)

    def __repr__(self) -> str:
        return f"MambaSpec({self.__dict__})"


def kv_cache_config(*specs: Any, num_blocks: int = 32) -> Any:
    """One KV-cache group for each spec, of two layers."""
    groups = [
        SimpleNamespace(kv_cache_spec=spec, layer_names=["layer.0", "layer.1"]) for spec in specs
    ]
    return SimpleNamespace(
        num_blocks=num_blocks, kv_cache_groups=groups, hash_block_size=BLOCK_TOKENS
    )


class PlainImpl:
    """Writes K and V where the shape (blocks, heads, tokens, K then V) of the cache says."""

    def do_kv_cache_update(self, _layer: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        blocks, tokens = slots // cache.shape[2], slots % cache.shape[2]
        cache[blocks, :, tokens] = torch.cat((key, value), -1)


class Layers(dict[str, Any]):
    """Every layer of an engine by its name, all of one implementation."""

    def __init__(self, impl: Any) -> None:
        super().__init__()
        self._layer = SimpleNamespace(impl=impl)

    def get(self, name: str, _default: Any = None) -> Any:
        del name
        return self._layer


def vllm_config(model: Path | str = "org/model", *, world: int = 1, rank: int = 0) -> Any:
    """The parts of VllmConfig the shim reads; tests change them in place."""
    hf = {"hidden_size": 8, "rope_theta": 1e4, "_name_or_path": str(model)}
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=128, max_num_seqs=64),
        model_config=SimpleNamespace(
            model=str(model),
            tokenizer=str(model),
            revision=None,
            seed=0,
            dtype=torch.float32,
            quantization=None,
            model_weights="",
            multimodal_config=None,
            max_model_len=256,
            hf_text_config=SimpleNamespace(to_dict=lambda: dict(hf)),
            get_total_num_kv_heads=lambda: 2,
            hf_config=SimpleNamespace(to_dict=lambda: dict(hf), hf=hf, _commit_hash=None),
        ),
        parallel_config=SimpleNamespace(
            world_size=world,
            rank=rank,
            distributed_executor_backend=None,
            tensor_parallel_size=world,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        load_config=SimpleNamespace(
            load_format="auto", download_dir=None, model_loader_extra_config={}
        ),
        cache_config=SimpleNamespace(
            prefix_caching_hash_algo="sha256",
            cache_dtype="auto",
            block_size=BLOCK_TOKENS,
            enable_prefix_caching=True,
        ),
        speculative_config=None,
        lora_config=None,
        kv_events_config=None,
        attention_config=SimpleNamespace(backend=None),
        compilation_config=SimpleNamespace(static_forward_context=Layers(PlainImpl())),
        kv_transfer_config=SimpleNamespace(
            engine_id="engine-1",
            kv_role="kv_both",
            kv_load_failure_policy="fail",
            kv_connector_extra_config={},
        ),
    )


class Pool:
    """A block pool as far as the shim uses vLLM's: reference counts, a free queue, blocks by hash."""

    def __init__(self, num_blocks: int = 32) -> None:
        self.blocks = [SimpleNamespace(block_id=n, ref_cnt=0) for n in range(num_blocks)]
        self.cached: dict[bytes, int] = {}
        self.cached_by_group: dict[tuple[int, bytes], int] = {}
        self.freed: list[int] = []
        self.cached_block_hash_to_block = object()

    def get_cached_block(self, block_hash: bytes, groups: list[int]) -> list[Any] | None:
        (group,) = groups
        block_id = (self.cached if group == 0 else {}).get(block_hash)
        block_id = self.cached_by_group.get((group, block_hash), block_id)
        return None if block_id is None else [self.blocks[block_id]]

    def get_num_free_blocks(self) -> int:
        return sum(block.ref_cnt == 0 for block in self.blocks)

    def touch(self, blocks: list[Any]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks: list[Any]) -> None:
        for block in blocks:
            assert block.ref_cnt > 0, f"block {block.block_id} was released twice"
            block.ref_cnt -= 1
            self.freed.append(block.block_id)

    @property
    def referenced(self) -> list[int]:
        return [block.block_id for block in self.blocks if block.ref_cnt]


def chain(seed: str, blocks: int) -> list[bytes]:
    """Block hashes as vLLM makes them: 32 bytes, each depending on all before."""
    hashes = [hashlib.sha256(seed.encode()).digest()]
    while len(hashes) < blocks:
        hashes.append(hashlib.sha256(hashes[-1]).digest())
    return hashes[:blocks]


@dataclass
class Request:
    """What the shim reads of a vLLM request."""

    request_id: str
    num_tokens: int
    seed: str = "prompt"
    num_computed_tokens: int = 0
    skip_reading_prefix_cache: bool = False
    pooling_params: Any = None
    lora_request: Any = None
    prompt_embeds: Any = None
    resumable: bool = False
    cache_salt: str | None = None
    trace_headers: dict[str, str] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    mm_features: list[Any] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_prompt_tokens: int = 0
    status: Any = None
    prompt_token_ids: list[int] | None = None
    output_token_ids: list[int] = field(default_factory=list)
    arrival_time: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens or self.num_tokens
        self.block_hashes = chain(self.seed, self.num_tokens // BLOCK_TOKENS)


@dataclass
class Blocks:
    """What vLLM hands over after an allocation."""

    block_ids: list[int]
    others: tuple[list[int], ...] = ()

    def get_block_ids(self) -> tuple[list[int], ...]:
        return (self.block_ids, *self.others)


def scheduled(
    tokens: dict[str, int],
    tables: dict[str, list[int]],
    states: dict[str, list[tuple[int, int, int]]] | None = None,
    drafts: dict[str, list[int]] | None = None,
) -> Any:
    """A scheduler output: tokens by request, the block tables of group 0, and the states handed over."""
    state = SimpleNamespace(
        get_block_ids=lambda req_id: (tables[req_id],), boundary_state_offloads=states or {}
    )
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        kv_connector_block_state=state,
        scheduled_spec_decode_tokens=drafts or {},
    )


def step_output(
    received: set[str] | None = None,
    tickets: dict[int, int] | None = None,
    resolved: dict[int, Resolved] | None = None,
    loads: dict[str, int] | None = None,
    copied: dict[int, int] | None = None,
) -> Any:
    """What the workers told the scheduler in one step."""
    receipts = StepReceipts(resolved=resolved or {}, loads=loads or {})
    receipts.tickets.update(tickets or {})
    receipts.copied.update(copied or {})
    said = None if receipts.is_empty else receipts
    return SimpleNamespace(finished_recving=received, kv_connector_worker_meta=said)
