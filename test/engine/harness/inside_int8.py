"""Measures inside the engine how far a prompt's pages are from their originals, with the bound of each form."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from tierkv.connectors.vllm.pages.pages import AttentionPages, StatePages
from vllm import SamplingParams
from vllm.v1.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.engine_main import Host

#: Place of a block and the vectors in it with a bound of their own: (group, block, number).
Place = tuple[int, int, int]
_kept: dict[Place, torch.Tensor] = {}


def keep_pages(host: Host, prompt: list[int]) -> int:
    """Keeps a copy of the vectors of the prompt's blocks for `compare_pages`; returns the count of blocks."""
    _kept.clear()
    _kept.update(_vectors(host, prompt))
    return len({place[:2] for place in _kept})


def compare_pages(host: Host, prompt: list[int]) -> dict[str, Any]:
    """Compares the cached vectors with the kept ones, by class of record.

    Return the worst error over its bound (docs/protocol.md 1; states.py), signal to noise, equality, and blocks.
    """
    tallies: dict[str, _Tally] = {}
    for place, after in _vectors(host, prompt).items():
        group = host.worker._pages[place[0]].group
        form = group.parts[0][-1].form if group.parts else "attention"
        tallies.setdefault(group.record_class, _Tally()).add(place, _kept[place], after, form)
    return {name: tally.result() for name, tally in tallies.items()}


class _Tally:
    """Errors of the vectors of one class."""

    def __init__(self) -> None:
        self._worst = self._signal = self._noise = 0.0
        self._equal = True
        self._blocks: set[tuple[int, int]] = set()

    def add(self, place: Place, before: torch.Tensor, after: torch.Tensor, form: str) -> None:
        x, y = before.double(), after.double()
        bound = _bound(before) if form == "attention" else _state_bound(before, form)
        apart = (x - y).abs()
        self._worst = max(self._worst, float((apart / bound).nan_to_num(0.0).max()))
        self._signal += float((x * x).sum())
        self._noise += float((apart**2).sum())
        self._equal &= torch.equal(before, after)
        self._blocks.add(place[:2])

    def result(self) -> dict[str, Any]:
        snr_db = 10 * math.log10(self._signal / self._noise) if self._noise else math.inf
        blocks = len(self._blocks)
        return {"worst": self._worst, "snr_db": snr_db, "equal": self._equal, "blocks": blocks}


def _bound(vectors: torch.Tensor) -> torch.Tensor:
    absmax = vectors.float().abs().amax(-1, keepdim=True)
    scale = (absmax * (1 / 127)).to(torch.bfloat16).double().clamp(min=2.0**-126)
    half_step = 0.5 + 2.0**-15 if vectors.dtype == torch.float32 else 1 + 2.0**-14
    return scale * half_step


def _state_bound(values: torch.Tensor, form: str) -> torch.Tensor:
    if form == "bf16":
        return values.double().abs() * 2.0**-8
    half_step = 0.5 if values.dtype == torch.float32 else 1.0
    return values.double().abs().amax(-1, keepdim=True) / 127 * (half_step + 2.0**-14)


def _vectors(host: Host, prompt: list[int]) -> dict[Place, torch.Tensor]:
    """Returns copies of a prompt's cached pages, with vectors as the last dimension."""
    hasher = host.core.request_block_hasher
    request = Request("pages", prompt, SamplingParams(), None, block_hasher=hasher)
    pool = host.scheduler.kv_cache_manager.block_pool
    grid = host.shim._grid
    found = {}
    for group in grid.groups:
        pages = host.worker._pages[group.index]
        for index in range(len(prompt) // group.block_tokens):
            blocks = pool.get_cached_block(grid.block_hash(request, group, index), [group.index])
            if blocks is not None:
                for number, part in enumerate(_parts(pages, blocks[0].block_id)):
                    found[group.index, index, number] = part.clone()
    return found


def _parts(pages: Any, block_id: int) -> Iterator[torch.Tensor]:
    """Returns K and V of a layer or of all; or the possibly lossy states of each layer."""
    if isinstance(pages, AttentionPages):
        vectors = pages.read(block_id)
        yield vectors[..., : pages.group.dim_k]
        yield vectors[..., pages.group.dim_k :]
    elif isinstance(pages, StatePages):
        for layer, parts in zip(pages._layers, pages.group.parts, strict=True):
            state = parts[-1]
            page = layer[block_id].flatten()[-state.page_bytes :]
            yield page.clone().view(state.dtype).view(state.rows, state.dim)
