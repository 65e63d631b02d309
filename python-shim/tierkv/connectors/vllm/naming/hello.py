"""Owns the `hello` and `register` frames, which introduce one half of an engine to the sidecar."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.messages import hello
from tierkv.connectors.vllm.pages import amx
from tierkv.connectors.vllm.pages.specs import Group

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def hello_frame(
    config: "VllmConfig",
    role: Literal["scheduler", "worker"],
    rank: int,
    copies: int,
    *,
    loads_windows: bool = False,
) -> Frame:
    """Give a half's `hello`; `copies` neighbouring ranks hold the same pages."""
    world, transfer = config.parallel_config.world_size, config.kv_transfer_config
    engine, software = str(transfer.engine_id), compat.vllm_version()
    frame = hello(engine, software, role, rank=rank, world=world, shards=world // copies)
    if role == "scheduler":
        frame.update(compat.event_endpoints(config))
        if transfer.kv_role == "kv_producer":
            frame["producer"] = 1
        if loads_windows:
            frame["windows"] = 1
    if amx.has_tiles():
        frame["amx_tiles"] = 1
    return frame


def register_frame(config: "VllmConfig", kv_blocks: int, groups: Iterable[Group]) -> Frame:
    """Describe a rank's groups, and the longest prompts and steps."""
    model = config.model_config
    return {
        "t": "register",
        "model": str(model.model),
        "max_model_len": int(model.max_model_len),
        "step_tokens": int(config.scheduler_config.max_num_batched_tokens),
        "kv_blocks": kv_blocks,
        "groups": [group.registration() for group in groups],
    }
