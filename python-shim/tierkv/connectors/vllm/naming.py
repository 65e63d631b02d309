"""Owns how an engine names itself to the sidecar: once on each connection, and never with two lossy fidelities."""

import logging
from collections.abc import Callable

from tierkv.connectors.vllm import compat, namespace
from tierkv.connectors.vllm.counters import Counters
from tierkv.connectors.vllm.frames import Frame

log = logging.getLogger("tierkv.shim")


class Naming:
    """`parts`: the namespace's ingredients that are known at start; the root hash and the fidelity come later."""

    def __init__(self, parts: dict[str, str], model: str, counters: Counters) -> None:
        self._parts = parts
        self._model = model
        self._counters = counters
        self._fidelity = 0
        self._lossy_past = 0  # the lossy fidelity this engine has been named with, if any
        self._digest = b""
        self._connection = 0

    def hear(self, fidelity: int) -> None:
        """Take the fidelity that the sidecar stores with from now on. From the helper thread."""
        self._fidelity = fidelity
        if self._lossy_past not in (0, fidelity):
            log.warning(
                "tierKV: the sidecar now stores with fidelity %d, this engine holds blocks of fidelity %d; nothing is "
                "kept or restored until the engine is restarted, or [turbo_quant] is as it was",
                fidelity,
                self._lossy_past,
            )

    def name(self, connection: int, send: Callable[[Frame], bool]) -> bool:
        """Tell connection number `connection` once; False while the engine has no root hash yet."""
        if self._connection == connection:
            return True
        root = compat.none_hash()
        if root is None:
            return False
        fidelity = self._fidelity
        if self._lossy_past not in (0, fidelity):
            # Blocks it restored, and all it computed on them, would pass for blocks of another fidelity.
            self._counters.add("fidelity_changed")
            return False
        self._lossy_past = fidelity
        ours = namespace.finish(self._parts, root, fidelity)
        if ours.digest != self._digest:
            log.info("tierKV: namespace %s from %s", ours.digest.hex(), ours.parts)
        self._digest = ours.digest
        named = {"namespace": ours.digest, "model": self._model, "parts": ours.parts}
        if send({"t": "namespace", **named}):
            self._connection = connection
        return self._connection == connection
