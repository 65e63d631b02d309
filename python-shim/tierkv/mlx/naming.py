"""Owns the namespace of an engine of mlx-lm: closed by default, made in the background, void when weights change."""

import hashlib
import json
import logging
import os
import platform
import threading
from collections.abc import Sequence
from importlib import metadata
from typing import Final

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.messages import PAGE_ORDER
from tierkv.connectors.vllm.link.processors import lower_priority
from tierkv.mlx.buffers import Buffers
from tierkv.mlx.form import ModelForm, UnnameableError
from tierkv.mlx.kinds import Group

log = logging.getLogger("tierkv.shim")

#: Incremented when a stored block's meaning changes without a change of any ingredient.
_EPOCH: Final = "1"


def versions() -> dict[str, str]:
    """Give the releases that compute the values."""
    return {name: metadata.version(name) for name in ("mlx", "mlx-lm")}


class Naming:
    """`refused`: why there will be no name; empty while there may be one."""

    def __init__(self, model: nn.Module, groups: Sequence[Group]) -> None:
        self.refused = ""
        self.weights = ""
        self._model = model
        self._told: Frame = {}
        self._lossy_past = 0  # the lossy fidelity this engine has been named with, if any
        self._done = self._total = 0
        described = json.dumps([group.describe() for group in groups], sort_keys=True)
        self._parts = {
            "kv_format_epoch": _EPOCH,
            "engine": "mlx-lm",
            "chunk_tokens": str(limits.MLX_CHUNK_TOKENS),
            "groups": hashlib.sha256(described.encode()).hexdigest(),
            "device": f"{mx.default_device().type} {platform.machine()} {platform.system()}",
            "environment": json.dumps(
                sorted(item for item in os.environ.items() if item[0].startswith("MLX_"))
            ),
            **versions(),
        }
        try:
            form = ModelForm(model)
        except UnnameableError as error:
            self._refuse(f"the model has no name: {error}")
            return
        # Evaluated here, so that the other thread only reads finished bytes.
        mx.eval([array for _, array in form.arrays])
        self._buffers = Buffers([array for _, array in form.arrays])
        self._seen = self._arrays()
        self._total = form.total_bytes
        self._thread = threading.Thread(
            target=self._run, args=(form,), name="tierkv-naming", daemon=True
        )
        self._thread.start()

    def _run(self, form: ModelForm) -> None:
        lower_priority()
        try:
            self.weights = f"memory:{form.digest(self._hear)}"
        except Exception as error:  # no caller waits for this thread, so it must leave an answer
            log.exception("tierKV: the model cannot be read")
            self._refuse(f"the model cannot be read ({error!r})")

    def _hear(self, done: int) -> None:
        self._done = done

    def _refuse(self, why: str) -> None:
        self.refused = why
        log.warning("tierKV: nothing is saved or restored: %s", why)

    def _arrays(self) -> list[int]:
        return [id(array) for _, array in tree_flatten(self._model.parameters())]

    def check(self) -> None:
        """Check that the model still has the named weights; after a change it has no name."""
        if self.refused:
            return
        if self._arrays() != self._seen:
            self._refuse("weights were replaced after they were named; make a new Tier")
        elif not self._buffers.are_same():
            self._refuse("weights were written after they were named; make a new Tier")
        else:
            return
        self._buffers.let_go()

    def name(self, fidelity: int) -> tuple[bytes, dict[str, str]]:
        """Give the namespace for a fidelity of the sidecar, and its ingredients; empty while it is not known."""
        if not self.weights or self.refused:
            return b"", {}
        # Blocks restored lossily are built on, here and in other processes' caches.
        if self._lossy_past not in (0, fidelity):
            self._refuse(
                f"the sidecar now stores with fidelity {fidelity}, this process holds blocks of fidelity "
                f"{self._lossy_past}; start it again"
            )
            return b"", {}
        self._lossy_past = fidelity
        parts = {**self._parts, "weights": self.weights, "fidelity": str(fidelity)}
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest(), parts

    def identity(self) -> Frame | None:
        """Give the frame that identifies the weights; None while their digest is not known."""
        if not self.weights or self.refused:
            return None
        return {"t": "weights", "weights": self.weights, "order": PAGE_ORDER}

    def forget(self) -> None:
        """Report everything again to a new sidecar."""
        self._told = {}

    def report(self) -> Frame:
        """Give the progress of naming, if it is new, as a field of `counts`."""
        percent = 100 if self.weights else min(99, self._done * 100 // max(1, self._total))
        refused = self.refused[: limits.REFUSAL_TEXT_MAX]
        now: Frame = {"naming": {"percent": percent, "refused": refused}}
        if now == self._told:
            return {}
        self._told = now
        return now


def software() -> str:
    """Name the running software, for people."""
    return " ".join(f"{name} {version}" for name, version in versions().items())
