"""Owns the namespace of an engine of SGLang: closed by default, with another generation after a change of weights."""

import hashlib
import json
import logging
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final

import msgspec
import torch

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.canonical import Canonical, UnnameableError
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.messages import PAGE_ORDER
from tierkv.connectors.vllm.naming.fidelity import other_fidelity
from tierkv.connectors.vllm.naming.files import ModelFiles
from tierkv.sglang.exempt import ARGUMENTS, ENVIRONMENT, ENVIRONMENT_PREFIXES
from tierkv.sglang.generation import Generation
from tierkv.sglang.pages import Geometry
from tierkv.sglang.weights import sources

log = logging.getLogger("tierkv.shim")

#: Incremented when a stored page's meaning changes without a change of any ingredient.
_EPOCH: Final = "1"
#: Packages that compute, or decide what is computed; those that are not installed are left out.
_PACKAGES: Final = (
    "sglang",
    "sglang-kernel",
    "sgl-kernel",
    "torch",
    "transformers",
    "triton",
    "flashinfer-python",
    "flash-attn-4",
    "sgl-flash-mla",
    "sgl-deep-gemm",
    "compressed-tensors",
    "aiter",
)
_OWN: Final = "tierkv"


class Naming:
    """`refused`: why there will be no name; empty while there may be one."""

    def __init__(
        self,
        args: Mapping[str, Any],
        ranks: Mapping[str, int],
        geometry: Geometry,
        generation: Generation,
        counters: Counters,
        *,
        identity: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`args`: SGLang's resolved server arguments. `ranks`: which part of the model this process holds."""
        self._generation = generation
        self._counters = counters
        self._order = 0 if geometry.dtype == "u8" else PAGE_ORDER
        self._told: Frame = {}
        self._lossy_past = 0  # the lossy fidelity this engine has been named with, if any
        self._fidelity: int | None = None  # the one that the sidecar stores
        self._unnameable = ""
        self._complained = ""  # the refusal that was logged last
        self._parts: dict[str, str] = {}
        found = os.environ if environment is None else environment
        self._files = ModelFiles(
            lambda: sources(args, found),
            identity=identity,
            has_weights=lambda: str(args["load_format"]) != "dummy",
        )
        try:
            self._parts = _ingredients(args, ranks, geometry, found)
        except UnnameableError as error:
            self._unnameable = str(error)
        self._complain()

    def start(self) -> None:
        """Begin to read the model's files; waits a moment. From the helper thread."""
        self._files.start()

    def close(self) -> None:
        self._files.close()

    @property
    def refused(self) -> str:
        """Give why there will be no name."""
        return self._unnameable or self._files.refused

    @property
    def weights(self) -> str:
        """Name the weights, with their generation; empty while it is not known."""
        digest = self._files.digest
        return "+".join(filter(None, (digest and f"sglang:{digest}", self._generation.name)))

    def name(self, fidelity: int) -> tuple[bytes, dict[str, str]]:
        """Give the namespace for a fidelity of the sidecar, and its ingredients; empty while there is none."""
        if not self._files.digest or self.refused or self._generation.is_mixed:
            return b"", {}
        # Pages restored lossily are built on, here and in this engine's own caches.
        self._fidelity = fidelity
        if self._other_fidelity:
            self._counters.add("fidelity_changed")
            return b"", {}
        self._lossy_past = fidelity
        parts = {**self._parts, "weights": self.weights, "fidelity": str(fidelity)}
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest(), parts

    def renew(self) -> None:
        """Take another generation; pages of another fidelity are gone with the old one."""
        self._lossy_past = 0

    @property
    def _other_fidelity(self) -> str:
        """Say that this engine holds pages of another form than its sidecar now stores; empty: it does not."""
        return other_fidelity(self._lossy_past, self._fidelity)

    def identity(self) -> Frame | None:
        """Give the frame that identifies the weights; None while their digest is not known."""
        if not self._files.digest or self.refused:
            return None
        return {"t": "weights", "weights": self.weights, "order": self._order}

    def forget(self) -> None:
        """Report everything again to a new sidecar, whose fidelity is not known."""
        self._told, self._fidelity = {}, None

    def report(self) -> Frame:
        """Give the progress of naming, if it is new, as a field of `counts`."""
        refused = self._complain()[: limits.REFUSAL_TEXT_MAX]
        percent = 100 if self._files.digest else self._files.percent
        now: Frame = {"naming": {"percent": percent, "refused": refused}}
        if now == self._told:
            return {}
        self._told = now
        return now

    def _complain(self) -> str:
        """Give why there is no name, and log a reason that is new."""
        refused = self.refused or self._other_fidelity
        if refused and refused != self._complained:
            self._complained = refused
            self._counters.add("names_refused")
            log.warning("tierKV: nothing is saved or restored: %s", refused)
        return refused


def _ingredients(
    args: Mapping[str, Any],
    ranks: Mapping[str, int],
    geometry: Geometry,
    environment: Mapping[str, str],
) -> dict[str, str]:
    canonical = Canonical({})
    counted = {name: _plain(value) for name, value in args.items() if name not in ARGUMENTS}
    variables = {
        name: value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIXES) and name not in ENVIRONMENT
    }
    parts = {
        "kv_format_epoch": _EPOCH,
        "engine": "sglang",
        "arguments": _digest(canonical.text(counted, "server arguments")),
        "environment": f"{_digest(canonical.text(variables, 'environment'))} of {' '.join(sorted(variables))}",
        "pages": geometry.digest(),
        "ranks": " ".join(f"{name}={value}" for name, value in sorted(ranks.items())),
        "device": _device(str(args["device"])),
        "software": json.dumps(versions(), sort_keys=True),
        "plugins": json.dumps(_plugins()),
    }
    if str(args["load_format"]) == "dummy":
        parts["seed"] = str(args["random_seed"])  # it makes the weights
    return parts


def _plain(value: Any) -> Any:
    """Give SGLang's structures as maps, which have a canonical form."""
    if isinstance(value, msgspec.Struct):
        shown = {name: _plain(item) for name, item in msgspec.structs.asdict(value).items()}
        return {"": f"{type(value).__module__}.{type(value).__qualname__}", **shown}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def versions() -> dict[str, str]:
    """Give the releases that compute the values."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def software() -> str:
    """Name the running software, for people."""
    found = versions()
    return " ".join(f"{name} {found[name]}" for name in ("sglang", "torch") if name in found)


def _plugins() -> list[list[str]]:
    """Name SGLang's other plug-ins, which may replace any of its functions."""
    found = []
    for group in ("sglang.srt.plugins", "sglang.srt.platforms"):
        for point in metadata.entry_points(group=group):
            name = point.dist.name if point.dist else ""
            if name != _OWN:
                release = point.dist.version if point.dist else ""
                found.append([group, point.name, point.value, name, release])
    return sorted(found)


def _device(kind: str) -> str:
    if kind != "cpu":
        module = torch.get_device_module(kind)
        return f"{kind} {module.get_device_name()} {torch.version.cuda or torch.version.hip or ''}"
    return f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]
