"""Owns the digest of what a loaded model holds: its tensors, and the numbers and texts of its modules."""

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import torch
from blake3 import blake3  # vLLM requires it

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.processors import lower_priority
from tierkv.connectors.vllm.naming.digests import threads

log = logging.getLogger("tierkv.shim")

#: Multipliers of a finaliser with full avalanche (SplitMix64), as int64.
_MIX: Final = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
#: Odd steps between the positions of two words; one for each half of a digest.
_STEPS: Final = (0x9E3779B97F4A7C15 - (1 << 64), 0xD1B54A32D192ED03 - (1 << 64))
_WORD_BYTES: Final = 8
#: Values of a module that count; and attributes that hold the KV cache, which every step changes.
_SHOWN: Final = (torch.Tensor, torch.dtype, bool, int, float, str)
_CACHES: Final = ("kv_cache", "kv_caches")


class StoppedError(Exception):
    """Reading was ended before all was read."""


@dataclass(frozen=True)
class Held:
    """`digest`: of all tensors, numbers and texts. `closures`: functions that keep packed weights where none can read.

    Equal digests with the same living closures are the same weights in this process; only a digest without closures
    means anything to another.
    """

    digest: str
    closures: tuple["weakref.ref[Any]", ...] = ()

    @property
    def is_whole(self) -> bool:
        """Tell whether the digest covers all weights."""
        return not self.closures

    def is_same(self, other: "Held") -> bool:
        mine = [one() for one in self.closures]
        theirs = [one() for one in other.closures]
        is_same = len(mine) == len(theirs) and all(
            one is not None and one is two for one, two in zip(mine, theirs, strict=True)
        )
        return is_same and self.digest == other.digest


def hold(models: Sequence[torch.nn.Module], is_stopped: Callable[[], bool]) -> Held:
    """Read models whole; they must not change meanwhile. Raises StoppedError soon after `is_stopped` says so."""
    digest = blake3()
    closures: list[weakref.ref[Any]] = []
    tensors: dict[tuple[Any, ...], torch.Tensor] = {}
    numbers: dict[tuple[Any, ...], int] = {}
    for model in models:
        for place, value in _things(model):
            digest.update(f"{place}\0".encode())
            if isinstance(value, torch.Tensor):
                named = (
                    value.data_ptr() if _is_read(value) else 0,
                    value.shape,
                    value.stride(),
                    value.dtype,
                )
                tensors.setdefault(named, value)  # tied weights are read once
                digest.update(
                    f"{value.dtype} {tuple(value.shape)} {numbers.setdefault(named, len(numbers))}".encode()
                )
            elif isinstance(value, FunctionType):
                closures.append(weakref.ref(value))
            else:
                digest.update(repr(value).encode("utf-8", "backslashreplace"))
    with ThreadPoolExecutor(threads(), "tierkv-memory", lower_priority) as pool:
        read = [one for one in tensors.values() if _is_read(one)]
        on_cpu = pool.map(
            lambda one: _digest(one, is_stopped), (one for one in read if one.device.type == "cpu")
        )
        for one in read:
            digest.update(next(on_cpu) if one.device.type == "cpu" else _digest(one, is_stopped))
    return Held(digest.hexdigest(), tuple(closures))


def _things(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Give what the modules hold by name: parameters, buffers, and what lies in their attributes."""
    for path, module in model.named_modules():
        yield f"{path}:{type(module).__qualname__}", ""
        own = {**vars(module), **vars(module)["_parameters"], **vars(module)["_buffers"]}
        for name in sorted(own):
            if name not in _CACHES:
                yield from _values(f"{path}.{name}", own[name], depth=1)


def _values(place: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    is_closure = isinstance(value, FunctionType) and bool(value.__closure__)
    if is_closure or isinstance(value, _SHOWN):
        yield place, value
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _values(f"{place}[{key!r}]", item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _values(f"{place}[{number}]", item, depth - 1)


def _is_read(value: torch.Tensor) -> bool:
    return value.layout == torch.strided and value.device.type != "meta" and value.numel() > 0


def _digest(value: torch.Tensor, is_stopped: Callable[[], bool]) -> bytes:
    digest = blake3()
    flat = value.detach().contiguous().view(-1).view(torch.uint8)
    for part in flat.split(limits.MEMORY_PART_BYTES):
        if is_stopped():
            raise StoppedError
        digest.update(part.numpy() if part.device.type == "cpu" else b"".join(mixed(part)))
    return bytes(digest.digest())


def mixed(data: torch.Tensor) -> tuple[bytes, bytes]:
    """Give two sums of 64 bits of bytes on a device, each over words mixed with their position.

    Changes by accident or by training are found; sums made to collide on purpose are not.
    """
    whole = data.numel() // _WORD_BYTES * _WORD_BYTES
    tail = data[whole:].to("cpu").numpy().tobytes()
    start = data[:whole]
    if start.data_ptr() % _WORD_BYTES:
        start = start.clone()
    words = start.view(torch.int64)
    at = torch.arange(1, words.numel() + 1, dtype=torch.int64, device=words.device)
    sums = []
    for step in _STEPS:
        mix = words ^ (at * step)
        for shift, factor in zip((30, 27), _MIX, strict=True):
            mix ^= (mix >> shift) & ((1 << (64 - shift)) - 1)
            mix *= factor
        mix ^= (mix >> 31) & ((1 << 33) - 1)
        sums.append(int(mix.sum()).to_bytes(_WORD_BYTES, "little", signed=True))
    return sums[0] + tail, sums[1]


class MemoryDigest:
    """Reads a worker's models on a thread of its own: once when they are loaded, and again when asked.

    `models` gives them; an empty list means that there are none to read. On a GPU the work is queued from the calling
    thread, in a fraction of a second, because another thread's calls could meet the capture of CUDA graphs.
    """

    def __init__(self, models: Callable[[], Sequence[torch.nn.Module]]) -> None:
        self._models = models
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self.held: Held | None = None
        #: Whether the last reading has ended, with or without a result.
        self.is_done = True

    def start(self) -> None:
        """Read again; a reading under way is given up."""
        self.stop()
        self._stopped = threading.Event()
        self.held, self.is_done = None, False
        models = self._models()
        if any(one.device.type != "cpu" for model in models for one in model.parameters()):
            self._run(models, self._stopped)
            return
        self._thread = threading.Thread(
            target=self._run_aside, args=(models, self._stopped), name="tierkv-memory", daemon=True
        )
        self._thread.start()

    def stop(self, patience_s: float = 0.0) -> None:
        """Read nothing any more when this returns; waits so long for the end of a reading before giving it up."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(patience_s)
            self._stopped.set()
            thread.join()

    def _run_aside(self, models: Sequence[torch.nn.Module], stopped: threading.Event) -> None:
        lower_priority()
        self._run(models, stopped)

    def _run(self, models: Sequence[torch.nn.Module], stopped: threading.Event) -> None:
        try:
            self.held = hold(models, stopped.is_set) if models else None
        except StoppedError:
            pass
        except Exception:  # no caller waits for this thread, so it must leave an answer
            log.exception("tierKV: the loaded model cannot be read")
        self.is_done = True
