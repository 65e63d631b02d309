"""Owns the naming of an engine to the sidecar: once on each connection, when all parts of the name are known."""

import logging
import time
from collections.abc import Callable, Mapping

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.resolved import CANONICAL, Resolved, agreed
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.naming import namespace
from tierkv.connectors.vllm.naming.fidelity import other_fidelity
from tierkv.connectors.vllm.naming.weights import Weights

log = logging.getLogger("tierkv.shim")

#: The report that a sidecar assumes before the first one.
_UNTOLD: Frame = {"naming": {"percent": 0, "refused": ""}}


class Naming:
    """`parts`: the namespace's ingredients that are known at start; the rest comes later.

    The rest: the configuration of each of `world` ranks, the model files' digest, the root hash and the fidelity, which
    the sidecar decides once it knows the digest and the `order` of K and V in records. Until then, and where a part
    cannot be named, nothing is restored or saved.
    """

    def __init__(
        self,
        parts: dict[str, str],
        model: str,
        world: int,
        weights: Weights,
        counters: Counters,
        *,
        order: int,
    ) -> None:
        self._parts = parts
        self._weights = weights
        self._model = model
        self._order = order
        self._world = world
        self._ranks: dict[int, Resolved] = {}
        self._resolved: Resolved | None = None
        self._counters = counters
        self._fidelity: int | None = None
        self._is_open = False  # whether a sidecar has been there
        self._otherwise = 0  # the fidelity of weights that no certificate is about
        self._asked = 0  # the connection that the fidelity was asked on
        self._lossy_past = 0  # the lossy fidelity this engine has been named with, if any
        self._complained = ""  # the refusal that was logged last
        #: Why records under this name are distrusted; empty if they are not.
        self.verdict = ""
        #: 32 bytes; empty until this engine has named itself.
        self.digest = b""
        self._named: dict[str, str] = {}
        self._connection = 0
        self._told = _UNTOLD
        self._logged_at = 0.0
        self._logged_percent = -1

    def renew(self, generation: str) -> None:
        """Take the name of a generation of weights, empty for those as loaded; it is sent at the next use."""
        parts = {name: value for name, value in self._parts.items() if name != "generation"}
        self._parts = parts | ({"generation": generation} if generation else {})
        self.digest = b""
        # A certificate of the weights on disk says nothing of others. Nothing is named before the cache is empty.
        if self._fidelity is not None:
            self._fidelity, self._lossy_past = self._otherwise, 0
        self._connection = self._asked = 0

    def open(self) -> None:
        """Begin to name to a sidecar that knows nothing yet. From the helper thread."""
        self._is_open, self._fidelity = True, None
        self._told = _UNTOLD
        self._weights.start()

    def ask(self, connection: int, send: Callable[[Frame], bool]) -> None:
        """Ask for the fidelity once on connection number `connection`, as soon as the weights are known."""
        identity = self.identity()
        if self._asked == connection or identity is None or not send(identity):
            return
        self._asked = connection

    def identity(self) -> Frame | None:
        """Give the frame that identifies the weights; None while their digest or the ranks' pages are not known."""
        if not self._weights.digest or self.refused or self._resolved is None:
            return None
        generation = self._parts.get("generation", "")
        weights = "+".join(filter(None, (self._weights.digest, generation)))
        order = self._order if self.has_canonical_pages else 0
        return {"t": "weights", "weights": weights, "order": order}

    def hear(self, frame: Frame) -> None:
        """Take the sidecar's decision on the fidelity, unless it is about earlier weights. From the helper thread."""
        identity = self.identity()
        if identity is None or frame["weights"] != identity["weights"]:
            return
        self._otherwise = int(frame["otherwise"])
        self._fidelity = int(frame["fidelity"])

    def is_done(self, connection: int) -> bool:
        return self._connection == connection

    def introduce(self, found: Mapping[int, Resolved]) -> None:
        """Take ranks' configurations; the first of each rank counts."""
        self._ranks = {**found, **self._ranks}
        if self._resolved is not None or len(self._ranks) < self._world:
            return
        self._resolved = agreed(self._ranks, self._world)
        self._complain()

    @property
    def awaits_ranks(self) -> bool:
        """Tell whether a rank's configuration is missing: all come by the end of the first step."""
        return self._resolved is None

    @property
    def awaits_fidelity(self) -> bool:
        """Tell whether only the decision of a sidecar is missing, which answers at once."""
        return self._is_open and self._fidelity is None and self._are_parts_known

    @property
    def has_canonical_pages(self) -> bool:
        """Tell whether all ranks put K and V of all pages in order."""
        return self._resolved is not None and self._resolved.parts.get("pages") == CANONICAL

    @property
    def refused(self) -> str:
        """Give why there will be no name; empty while there may be one."""
        resolved = self._resolved.refused if self._resolved is not None else ""
        return self.verdict or resolved or self._weights.refused

    @property
    def is_lossy(self) -> bool:
        """Tell whether restored blocks may be lossy."""
        return bool(self._fidelity)

    @property
    def is_complete(self) -> bool:
        """Tell whether all parts of the name are known; without any sidecar yet, all but the fidelity."""
        is_decided = not self._is_open or self._fidelity is not None
        return is_decided and self._are_parts_known

    @property
    def _are_parts_known(self) -> bool:
        return self._resolved is not None and bool(self._weights.digest) and not self.refused

    def report(self) -> Frame:
        """Give the progress of naming, for `tierkv status`, if it is new; from the helper thread."""
        refused = self._complain()
        percent = 100 if self._are_parts_known else self._weights.percent
        now: Frame = {"naming": {"percent": percent, "refused": refused[: limits.REFUSAL_TEXT_MAX]}}
        if self.verdict:
            now["naming"]["distrusted"] = 1
        if now == self._told:
            return {}
        is_due = time.monotonic() - self._logged_at > limits.NAMING_LOG_EVERY_S
        is_news = percent not in (self._logged_percent, 100)
        if not refused and is_news and is_due:
            self._logged_at, self._logged_percent = time.monotonic(), percent
            log.info("tierKV: hashing model weights: %d %%", percent)
        self._told = now
        return now

    def close(self) -> None:
        self._weights.close()

    @property
    def _other_fidelity(self) -> str:
        """Say that this engine holds blocks of another form than its sidecar now stores; empty: it does not."""
        return other_fidelity(self._lossy_past, self._fidelity)

    def _complain(self) -> str:
        """Give why there is no name, and log a reason that is new."""
        refused = self.refused or self._other_fidelity
        if refused and refused != self._complained:
            self._complained = refused
            self._counters.add("names_refused")
            log.warning("tierKV: nothing is saved or restored: %s", refused)
        return refused

    def name(self, connection: int, send: Callable[[Frame], bool]) -> bool:
        """Send the name once on connection number `connection`; False while it is not complete."""
        if self._connection == connection:
            return not self.verdict
        self.ask(connection, send)
        ours = self.make()
        if ours is None:
            return False
        named = {"namespace": ours.digest, "model": self._model, "parts": ours.parts}
        if send({"t": "namespace", **named}):
            self._connection = connection
        return self._connection == connection

    def called(self, shards: int) -> tuple[str | int, ...]:
        """Give the name of this engine's blocks in vaults, for events; the mark alone while there is none."""
        root = compat.none_hash()
        if root is None or not self.digest or self.refused:
            return ("tierkv",)
        return "tierkv", self.digest.hex(), shards, root.hex()

    def make(self) -> namespace.Namespace | None:
        """Give the name; None while it is not complete, or if the sidecar's fidelity has changed."""
        root = compat.none_hash()
        fidelity = self._fidelity
        if root is None or fidelity is None or self._resolved is None or not self.is_complete:
            return None
        if self._other_fidelity:
            # Restored blocks, and all computed from them, would pass for blocks of another fidelity.
            self._counters.add("fidelity_changed")
            return None
        self._lossy_past = fidelity
        parts = {**self._parts, **self._resolved.parts, "weights": self._weights.digest}
        ours = namespace.finish(parts, root, fidelity)
        if ours.digest != self.digest:
            exact, rounded = "bit for bit", "rounded, as `tierkv status` says"
            form = rounded if fidelity else exact
            log.info("tierKV: blocks are named %s and come back %s", ours.digest.hex(), form)
            log.debug("tierKV: that name stands for %s", ours.parts)
        self.digest, self._named = ours.digest, ours.parts
        return ours

    def as_if(self, changes: Mapping[str, str]) -> bytes:
        """Give the digest of an engine that differs from this named one in these ingredients only."""
        return namespace.digest_of({**self._named, **changes})
