"""Memory that no GPU pins, where SGLang pins it without asking for a GPU: in its LoRA and its storage in files."""

from __future__ import annotations

from typing import Any

import torch


class _Torch:
    """The module `torch`, whose new tensors are never pinned."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, *args: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        return torch.tensor(*args, **more)

    def zeros(self, *args: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        return torch.zeros(*args, **more)


def _as_it_is(tensor: torch.Tensor, *_device: Any) -> torch.Tensor:
    return tensor


def install() -> None:
    """Replace what these modules call; a plug-in of SGLang."""
    from sglang.srt.lora import layers  # noqa: PLC0415 - after SGLang's set-up
    from sglang.srt.lora.backend import torch_backend  # noqa: PLC0415
    from sglang.srt.mem_cache.pool_host import mha, mla  # noqa: PLC0415

    setattr(torch.Tensor, "pin_memory", _as_it_is)  # noqa: B010 - its type is another
    for module in (layers, torch_backend, mha, mla):
        module.torch = _Torch()
