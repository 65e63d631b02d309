"""Owns the lossy, opt-in forms of recurrent states: the parts of a page that take one, encoding and decoding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tierkv.connectors.vllm.link.settings import Form

_CODE_MAX: Final = 127
#: Source dtypes of each form; a state in another dtype stays as it is.
_TAKES: Final[dict[Form, tuple[torch.dtype, ...]]] = {
    "raw": (),
    "bf16": (torch.float32,),
    "int8": (torch.float32, torch.bfloat16, torch.float16),
}
_SCALE = torch.float32


@dataclass(frozen=True)
class StatePart:
    """One tensor of a state's page: `rows` vectors of `dim` elements; its bytes in the engine and in a slot.

    `bf16`: each element to the nearest. `int8`: per vector a scale (float32, absmax / 127), then codes of one byte, so
    that an element is off by half a scale at most, and by as much again in a dtype of 16 bits; a vector with an inf or
    NaN comes back as NaN, never as a wrong number.
    """

    form: Form
    dtype: torch.dtype
    rows: int
    dim: int

    @property
    def page_bytes(self) -> int:
        return self.rows * self.dim * self.dtype.itemsize

    @property
    def slot_bytes(self) -> int:
        if self.form == "int8":
            return self.rows * (_SCALE.itemsize + self.dim)
        item = torch.bfloat16.itemsize if self.form == "bf16" else self.dtype.itemsize
        return self.rows * self.dim * item

    def encode(self, page: torch.Tensor) -> torch.Tensor:
        """Turn the part's bytes (uint8, flat) into those of a slot (uint8, flat)."""
        if self.form == "raw":
            return page
        values = page.clone().view(self.dtype)  # a page may lie at any byte
        if self.form == "bf16":
            return values.to(torch.bfloat16).view(torch.uint8)
        rows = values.view(self.rows, self.dim).float()
        scale = rows.abs().amax(-1, keepdim=True) / _CODE_MAX
        codes = (rows / scale.clamp(min=torch.finfo(_SCALE).tiny)).round().to(torch.int8)
        return torch.cat([scale.view(torch.uint8).flatten(), codes.view(torch.uint8).flatten()])

    def decode(self, slot: torch.Tensor) -> torch.Tensor:
        """Turn a slot's bytes (uint8, flat) into the part's (uint8, flat)."""
        if self.form == "raw":
            return slot
        if self.form == "bf16":
            return slot.clone().view(torch.bfloat16).to(self.dtype).view(torch.uint8)
        scale = slot[: self.rows * _SCALE.itemsize].clone().view(_SCALE).unsqueeze(1)
        codes = slot[self.rows * _SCALE.itemsize :].view(torch.int8).view(self.rows, self.dim)
        return (codes.float() * scale).to(self.dtype).flatten().view(torch.uint8)


def state_parts(spec: Any, form: Form) -> tuple[StatePart, ...]:
    """Give the parts of a MambaSpec's page, in its order; only states of a sequence take another form than raw.

    The convolution's inputs, the first of several parts, are few and stay as they are. A page in which no part takes
    the form has no parts.
    """
    parts = [
        StatePart(
            form=form if dtype in _TAKES[form] and _is_state(number, spec.shapes) else "raw",
            dtype=dtype,
            rows=math.prod(shape[:-1]),
            dim=shape[-1],
        )
        for number, (shape, dtype) in enumerate(zip(spec.shapes, spec.dtypes, strict=True))
    ]
    return tuple(parts) if any(part.form != "raw" for part in parts) else ()


def _is_state(number: int, shapes: Sequence[Sequence[int]]) -> bool:
    return number > 0 if len(shapes) > 1 else len(shapes[0]) > 2
