"""Owns the names of the forms in which recurrent states may be kept."""

from typing import Final, Literal

Form = Literal["raw", "bf16", "int8"]
#: What `[turbo_quant] states` may say.
FORMS: Final[tuple[Form, ...]] = ("raw", "bf16", "int8")
