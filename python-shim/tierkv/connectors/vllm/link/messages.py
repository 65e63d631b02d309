"""Owns the parts of frames that every kind of engine sends: `hello`, named blocks, and a slot's layout.

Imports no msgspec: the GPU kit runs without it.
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import tierkv
from tierkv.connectors.vllm import limits

if TYPE_CHECKING:
    from tierkv.connectors.vllm.link.frames import Frame

#: Version of the order in which records hold K and V: (head, token, K or V). Certificates name it.
PAGE_ORDER: Final = 1


def hello(
    engine: str,
    software: str,
    role: str,
    *,
    rank: int = 0,
    world: int = 1,
    shards: int = 1,
    kind: str = "",
) -> "Frame":
    """Give the first frame of a connection. `shards`: how many of `world` ranks have pages of their own.

    `kind`: "sglang" or "mlx-lm"; empty: vLLM.
    """
    return {
        **({"kind": kind} if kind else {}),
        "t": "hello",
        "protocol": limits.LOCAL_PROTOCOL,
        "role": role,
        "engine": engine,
        "rank": rank,
        "world": world,
        "shards": shards,
        "pid": os.getpid(),
        "shim": tierkv.__version__,
        "vllm": software,
    }


def request_text(req_id: object) -> str:
    """Give a request's id as frames carry it: a client chooses its length and may put a lone surrogate into it."""
    text = str(req_id)[: limits.REQUEST_TEXT_BYTES_MAX].encode("utf-8", "replace")
    return text[: limits.REQUEST_TEXT_BYTES_MAX].decode("utf-8", "ignore")


def named_blocks(group: Any, hashes: Iterable[bytes], first: int) -> "Frame":
    """Name blocks of a KV-cache group by their hashes, in the order of the prompt; `first`: the first one meant."""
    joined = b"".join(hashes)
    return {"group": group.index, "class": group.record_class, "hashes": joined, "from": first}


def opaque_layout(layers: int, layer_bytes: int) -> "Frame":
    """Describe a slot of blocks that are opaque to the sidecar, for `register`."""
    names = ("heads", "dim_k", "dim_v", "key_offset", "value_offset", "head_stride", "token_stride")
    shape = {"layers": layers, "layer_bytes": layer_bytes}
    return {"layout": "opaque", "dtype": "u8", **shape, **dict.fromkeys(names, 0)}


def attention_layout(
    dtype: str, item_bytes: int, *, layers: int, heads: int, tokens: int, dim_k: int, dim_v: int
) -> "Frame":
    """Describe how a slot holds K and V, for `register`: (layer, head, token, K|V), densely."""
    token_stride = (dim_k + dim_v) * item_bytes
    return {
        "layout": "attention",
        "dtype": dtype,
        "layers": layers,
        "heads": heads,
        "dim_k": dim_k,
        "dim_v": dim_v,
        "layer_bytes": heads * tokens * token_stride,
        "key_offset": 0,
        "value_offset": dim_k * item_bytes,
        "head_stride": tokens * token_stride,
        "token_stride": token_stride,
    }


def is_set(bits: bytes, index: int) -> bool:
    """Tell whether a bit of a bitmap is set; bits after its end are not."""
    return index // 8 < len(bits) and bool(bits[index // 8] >> (index % 8) & 1)
