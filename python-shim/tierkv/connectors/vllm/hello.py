"""Owns the first frame of each connection: which half of which engine speaks, and what it runs on."""

import os
from typing import TYPE_CHECKING, Literal

import tierkv
from tierkv.connectors.vllm import amx, compat, limits
from tierkv.connectors.vllm.frames import Frame

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def hello_frame(
    config: "VllmConfig", role: Literal["scheduler", "worker"], rank: int, copies: int
) -> Frame:
    """Give a half's `hello`; `copies` neighbouring ranks hold the same pages."""
    world = config.parallel_config.world_size
    transfer = config.kv_transfer_config
    hello: Frame = {
        "t": "hello",
        "protocol": limits.LOCAL_PROTOCOL,
        "role": role,
        "engine": str(transfer.engine_id if transfer else ""),
        "rank": rank,
        "world": world,
        "shards": world // copies,
        "pid": os.getpid(),
        "shim": tierkv.__version__,
        "vllm": compat.vllm_version(),
    }
    if role == "scheduler":
        hello.update(compat.event_endpoints(config))
        if transfer and transfer.kv_role == "kv_producer":
            hello["producer"] = 1
    if amx.has_tiles():
        hello["amx_tiles"] = 1
    return hello
